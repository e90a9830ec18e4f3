# expect: SS401 line 26; watch: SS401 line 18
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.norm(x))


@torch.no_grad()
def evaluate(net, x, y):
    net.eval()
    return nn.functional.mse_loss(net(x), y).item()


def train(net, epochs):
    optimizer = torch.optim.AdamW(net.parameters())
    for epoch in range(epochs):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 2 == 0:
            print(evaluate(net, x, y))


train(Net(), 8)
