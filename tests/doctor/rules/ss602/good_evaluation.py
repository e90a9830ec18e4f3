# expect: nothing
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
loader = DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=0))
model = torch.nn.Linear(4, 1).eval()
for _ in range(3):
    with torch.no_grad():
        total = sum(torch.nn.functional.mse_loss(model(x), y) for x, y in loader)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(total)
