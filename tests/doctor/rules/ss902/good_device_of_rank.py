# expect: nothing
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank = dist.get_rank()
print(DDP(torch.nn.Linear(4, 1).cuda(rank)))
