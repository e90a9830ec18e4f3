# expect: nothing
import torch
from torch import nn


def evaluate(net, x):
    was_training = net.training
    net.eval()
    with torch.no_grad():
        value = net(x).mean().item()
    net.train(was_training)
    return value


net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if step % 3 == 2:
        print(evaluate(net, torch.randn(8, 4)))
