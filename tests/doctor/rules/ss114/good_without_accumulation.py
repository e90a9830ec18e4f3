# expect: nothing; ranks: nothing
import torch
from torch.nn.parallel import DistributedDataParallel

store = torch.distributed.HashStore()  # type: ignore[attr-defined]
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if index % 4 == 0:
        print(loss.item())
torch.distributed.destroy_process_group()
