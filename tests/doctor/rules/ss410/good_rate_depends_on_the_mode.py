# expect: nothing
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        if self.training:
            x = F.dropout(x, 0.1)
        rate = 0.5 if self.training else 0.0
        return F.dropout(self.fc(x), rate)


print(Net()(torch.randn(3, 4)))
