# expect: SS902 line 10
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank: int, count: int) -> None:
    dist.init_process_group("nccl", rank=rank, world_size=count)
    print(DDP(torch.nn.Linear(4, 1).cuda()))


mp.spawn(work, args=(2,), nprocs=2)
