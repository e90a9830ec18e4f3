# expect: nothing; ranks: SS903 line 23
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.boxes = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.relu(self.body(x))
        return self.classes(features), self.boxes(features)


torch.distributed.init_process_group(backend="gloo")
ddp = DDP(TwoHeads())
optimizer = torch.optim.AdamW(ddp.parameters())
for _ in range(4):
    optimizer.zero_grad()
    logits, _ = ddp(torch.randn(8, 4))
    nn.functional.cross_entropy(logits, torch.randint(3, (8,))).backward()
    optimizer.step()
