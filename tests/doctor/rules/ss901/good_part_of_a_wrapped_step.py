# expect: nothing; ranks: nothing
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

torch.distributed.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    features = model(torch.randn(8, 4))
    cycle = model.module(features)
    optimizer.zero_grad()
    (features.pow(2).mean() + cycle.pow(2).mean()).backward()
    optimizer.step()
