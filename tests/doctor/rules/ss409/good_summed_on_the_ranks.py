# expect: nothing; ranks: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.distributed.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
model, total = nn.Linear(4, 1).eval(), torch.zeros(2)
with torch.no_grad():
    for x, y in loader:
        total[0] += nn.functional.mse_loss(model(x), y, reduction="sum")
        total[1] += len(y)
torch.distributed.all_reduce(total)
print((total[0] / total[1]).item())
