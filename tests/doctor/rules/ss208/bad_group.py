# expect: SS208 line 9
from torch import nn, optim

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
groups = [
    {"params": net[0].parameters(), "weight_decay": 1e-2},
    {"params": net[2].parameters(), "weight_decay": 0.0},
]
print(optim.Adam(groups, lr=3e-4))
