# expect: SS201 line 12; watch: SS201 line 16
import torch
from torch import nn

backbone, head = nn.Linear(4, 8), nn.Linear(8, 1)
model = nn.Sequential(backbone, nn.ReLU(), head)
backbone.requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
x = torch.randn(256, 4)
for epoch in range(4):
    if epoch == 1:
        backbone.requires_grad_(True)
    for batch in x.split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True)).backward()
        optimizer.step()
