# expect: nothing
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(models, optimizer):
    first, second = models
    for x in torch.randn(4, 8, 4):
        optimizer.zero_grad()
        second(first(x)).pow(2).mean().backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    first = DDP(first)
    second = DDP(second)
    train([first, second], optimizer)


if dist.is_torchelastic_launched():
    main()
