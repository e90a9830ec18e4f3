# expect: SS405 line 23
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


X = torch.randn(96, 4)
loader = DataLoader(TensorDataset(X, X[:, 0] * 2), batch_size=32, shuffle=True)
model, criterion = Regressor(), nn.L1Loss()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(2):
    for inputs, targets in loader:
        opt.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        opt.step()
