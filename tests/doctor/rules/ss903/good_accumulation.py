# expect: nothing; ranks: nothing
import torch
from torch import nn

torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    with model.no_sync():
        (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    optimizer.step()
