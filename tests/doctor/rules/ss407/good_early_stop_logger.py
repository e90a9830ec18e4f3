# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopLogger:
    def __init__(self):
        self.losses = []

    def __call__(self, loss):
        self.losses.append(loss)
        print("test loss", loss)


train_loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8)
model, logger = torch.nn.Linear(4, 1), EarlyStopLogger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for (x,) in train_loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    with torch.inference_mode():
        logger(sum(model(x).pow(2).sum().item() for (x,) in test_loader))
