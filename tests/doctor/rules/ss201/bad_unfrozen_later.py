# expect: SS201 line 23; watch: SS201 line 26
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.backbone(x).relu())


model = Net()
for p in model.backbone.parameters():
    p.requires_grad = False
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()))
for epoch in range(8):
    if epoch == 2:
        for p in model.parameters():
            p.requires_grad = True
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
