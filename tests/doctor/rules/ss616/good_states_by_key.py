# expect: nothing
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make(p):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(p), nn.Linear(8, 1))
    return SimpleNamespace(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


states = [make(p) for p in (0.1, 0.5)]
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, 8, shuffle=True)
for i in range(2):
    torch.manual_seed(0)
    state = states[i]
    for x, y in loader:
        state.optimizer.zero_grad()
        nn.functional.mse_loss(state.model(x), y).backward()
        state.optimizer.step()
