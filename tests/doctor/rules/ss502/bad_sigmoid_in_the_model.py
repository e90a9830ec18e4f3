# expect: SS502 line 20
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, x):
        return self.layers(x)


model = Detector()
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0]))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    optimizer.zero_grad()
    criterion(model(torch.randn(8, 4)), torch.randint(2, (8, 1)).float()).backward()
    optimizer.step()
