# expect: nothing
import torch
from torch import nn

body, head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout()), nn.Linear(8, 1)
model = nn.Sequential(body, head)
body.requires_grad_(False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for epoch in range(3):
    model.eval()
    with torch.no_grad():
        print(model(torch.randn(8, 4)).std())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
