# expect: SS806 line 17; ranks: SS806 line 17
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)


dist.init_process_group("gloo")
model = DDP(Net())
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "weights.pt")
