# expect: nothing; ranks: nothing
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

torch.distributed.init_process_group("gloo")
torch.manual_seed(torch.distributed.get_rank())
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    with model.no_sync():
        (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    optimizer.step()
