# expect: SS403 line 11
import torch
from torch import nn


def evaluate(model, batches):
    model.eval()
    criterion = nn.MSELoss(reduction="sum")
    total = 0.0
    for x, y in batches:
        total += criterion(model(x), y).item()
    return total


model = nn.Linear(4, 1)
print(evaluate(model, [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]))
