# expect: SS902 line 7
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(4, 1).to(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()
    optimizer.step()
