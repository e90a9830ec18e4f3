# expect: SS303 line 24
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
epochs = 3
total_steps = epochs * len(loader)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = CosineAnnealingLR(optimizer, total_steps)


def train_epoch() -> None:
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


for _ in range(epochs):
    train_epoch()
    scheduler.step()
