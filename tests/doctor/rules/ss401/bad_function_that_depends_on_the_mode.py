# expect: SS401 line 20; watch: SS401 line 22
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(nn.functional.dropout(self.lstm(x)[0], 0.3, self.training))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(5, 8, 4)).pow(2).mean().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(net(torch.randn(5, 8, 4)).pow(2).mean().item())
