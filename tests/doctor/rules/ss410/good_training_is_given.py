# expect: nothing
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        x = F.dropout(F.relu(self.fc1(x)), 0.5, self.training)
        return self.fc2(F.dropout(x, p=0.1, training=self.training))


print(Net()(torch.randn(3, 4)))
