# expect: SS901 line 13; ranks: SS901 line 13
import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
ddp_model = DDP(model)
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
for _ in range(10):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
