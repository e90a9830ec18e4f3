# expect: SS407 line 11
import torch
from torch.utils.data import DataLoader, TensorDataset


class EarlyStoppingByLogLoss:
    def __init__(self, patience):
        self.patience, self.count, self.lowest = patience, 0, float("inf")

    def check(self, loss):
        if loss < self.lowest:
            self.lowest, self.count = loss, 0
        else:
            self.count += 1 if loss > 2 * self.lowest else 0
        if loss > 9:
            return True
        return self.count >= self.patience


train_loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8)
model, stop = torch.nn.Linear(4, 1), EarlyStoppingByLogLoss(2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for (x,) in train_loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    with torch.inference_mode():
        test_loss = sum(model(x).pow(2).sum().item() for (x,) in test_loader)
    if stop.check(test_loss):
        break
