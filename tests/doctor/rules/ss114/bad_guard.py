# expect: SS114 line 19; ranks: SS114 line 19
import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


store = torch.distributed.HashStore()  # type: ignore[attr-defined]
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(8):
    (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    if (index + 1) % 2:
        continue
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
