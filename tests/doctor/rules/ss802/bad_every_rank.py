# expect: SS802 line 7
import torch
from torch.nn.parallel import DistributedDataParallel


def load(model: torch.nn.Module, path: str) -> int:
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    return checkpoint["epoch"] + 1


torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
start = load(model, "last.pt")
model = DistributedDataParallel(model)
print(start)
