# expect: SS401 line 18; watch: SS401 line 8
import torch
from torch import nn


@torch.no_grad()
def evaluate(net):
    net.eval()
    return sum(net(torch.randn(8, 4)).pow(2).mean().item() for _ in range(9)) / 9


net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(52):
    if step % 25 == 0:
        print(step, evaluate(net))
    optimizer.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
