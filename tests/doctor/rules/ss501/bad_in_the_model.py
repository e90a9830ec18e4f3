# expect: SS501 line 23
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 16)
        self.out = nn.Linear(16, 3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        return self.softmax(self.out(torch.relu(self.hidden(x))))


model = Classifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    optimizer.zero_grad()
    outputs = model(torch.randn(8, 4))
    loss = criterion(outputs, torch.randint(3, (8,)))
    loss.backward()
    optimizer.step()
