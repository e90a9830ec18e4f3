# expect: nothing; ranks: nothing
import os

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = DDP(model)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
