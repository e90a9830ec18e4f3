# expect: nothing
import torch
import torch.nn as nn
import torch.nn.functional as F


class MonteCarloNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return F.dropout(self.fc(x), 0.5, training=True)


net = MonteCarloNet().eval()
with torch.no_grad():
    print(torch.stack([net(torch.ones(3, 4)) for _ in range(5)]).std(0))
