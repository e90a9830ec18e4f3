# expect: SS409 line 12; watch: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, 8, sampler=DistributedSampler(data, 2, 0))
model, criterion, losses = nn.Linear(4, 1).eval(), nn.MSELoss(), []
with torch.inference_mode():
    for batch in loader:
        losses.append(criterion(model(batch[0]), batch[1]).item())
print(sum(losses) / len(losses))
