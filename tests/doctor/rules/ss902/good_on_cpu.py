# expect: nothing
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
print(DDP(torch.nn.Linear(4, 1)))
