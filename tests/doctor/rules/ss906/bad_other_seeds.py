# expect: SS906 line 25; ranks: nothing
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def batches(loader):
    while True:
        yield from loader


def train(loader, model, optimizer):
    loader = batches(loader)
    for _ in range(4):
        x, y = next(loader)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
if dist.is_initialized() and dist.get_world_size() > 1:
    model = nn.parallel.DistributedDataParallel(model)
train(loader, model, torch.optim.SGD(model.parameters(), lr=0.1))
