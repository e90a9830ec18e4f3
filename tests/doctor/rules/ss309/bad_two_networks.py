# expect: SS309 line 9
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

encoder, head = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer_a = torch.optim.SGD(encoder.parameters(), lr=0.1)
optimizer_b = torch.optim.SGD(head.parameters(), lr=0.1)
scheduler = StepLR(optimizer_a, 10)
x, y = torch.randn(64, 4), torch.randn(64, 1)
for epoch in range(30):
    optimizer_b.zero_grad()
    loss = nn.functional.mse_loss(head(encoder(x).detach()), y)
    loss.backward()
    optimizer_b.step()
    scheduler.step()
    print(epoch, loss.item(), scheduler.get_last_lr())
