# expect: nothing; ranks: nothing
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(24, 4).chunk(2)[dist.get_rank()]
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(x), batch_size=4, shuffle=True):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
