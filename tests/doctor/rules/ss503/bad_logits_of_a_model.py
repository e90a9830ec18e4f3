# expect: SS503 line 21
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.out = nn.Linear(24, 3)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).flatten(1))


model = Classifier()
criterion = nn.NLLLoss()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    criterion(model(torch.randn(8, 1, 8)), torch.randint(3, (8,))).backward()
    optimizer.step()
