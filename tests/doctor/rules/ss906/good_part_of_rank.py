# expect: nothing; ranks: nothing
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
rank = torch.distributed.get_rank()
x = torch.randn(64, 4)[rank::2]
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x_batch,) in DataLoader(TensorDataset(x), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    model(x_batch).pow(2).mean().backward()
    optimizer.step()
