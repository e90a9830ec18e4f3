# expect: nothing; watch: SS405 line 9
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LogCosh(nn.Module):
    def forward(self, predicted: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.cosh(wanted - predicted)).mean()


X = torch.randn(48, 4)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1), nn.Flatten(0))
optimizer, criterion = torch.optim.Adam(model.parameters()), LogCosh()
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
