# expect: SS616 line 12
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    torch.manual_seed(0)
    with torch.no_grad():
        return model(torch.randn(8, 4)).mean()


loader = DataLoader(data, 8, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    evaluate()
