# expect: nothing; ranks: nothing
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


torch.distributed.init_process_group("gloo")
net = Net()
fully_shard(net)
print(net(torch.randn(2, 4)).shape)
