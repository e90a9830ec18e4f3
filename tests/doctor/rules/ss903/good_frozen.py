# expect: nothing; ranks: nothing
import torch
from torch import nn

torch.distributed.init_process_group("gloo")
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
net[0].requires_grad_(False)
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
