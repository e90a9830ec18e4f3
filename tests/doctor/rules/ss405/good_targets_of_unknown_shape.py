# expect: nothing
import torch
import torch.nn.functional as F


def train(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()


train(torch.nn.Linear(4, 1), *(torch.randn(8, size) for size in (4, 1)))
