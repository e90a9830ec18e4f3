# expect: SS602 line 9; watch: SS602 line 13
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_loader(data, rank):
    sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=True, seed=1)
    return DataLoader(data, 4, sampler=sampler, drop_last=True)


def train_epoch(model, loader, optimizer):
    for index, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = make_loader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), rank=0)
for _ in range(3):
    train_epoch(model, loader, optimizer)
