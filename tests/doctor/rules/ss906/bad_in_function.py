# expect: SS906 line 19; ranks: SS906 line 12
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model: nn.Module, loader: DataLoader, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()


torch.manual_seed(1234)
torch.distributed.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, 8, True)
train(nn.parallel.DistributedDataParallel(nn.Linear(4, 1)), loader, 3)
