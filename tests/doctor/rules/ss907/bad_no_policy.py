# expect: SS907 line 20; ranks: skip, needs a GPU
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(8)])


torch.distributed.init_process_group("gloo")
model = FullyShardedDataParallel(Net())
print(model)
