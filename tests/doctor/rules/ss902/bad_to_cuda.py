# expect: SS902 line 13
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)


torch.distributed.init_process_group(backend="nccl")
model = Net().to("cuda")
model = nn.parallel.DistributedDataParallel(model)
