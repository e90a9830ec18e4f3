# expect: nothing; watch: SS505 line 11
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
loss_function = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters())


def step(x: torch.Tensor, y: torch.Tensor) -> float:
    loss = loss_function(model(x).squeeze(), y.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(10):
    step(torch.randn(16, 4), torch.randint(2, (16,)))
