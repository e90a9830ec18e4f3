# expect: nothing; ranks: nothing
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

torch.distributed.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
model.eval()
with torch.inference_mode():
    print(model.module(torch.randn(8, 4)).mean())
