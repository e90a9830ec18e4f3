# expect: SS708 line 13; watch: SS210 line 15
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
for epoch in range(4):
    if epoch == 1:
        model[0].requires_grad_(False)  # warm-up is over
    for _ in range(5):
        x = torch.randn(16, 4)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
