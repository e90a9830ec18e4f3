# expect: SS701 line 14; watch: SS701 line 10
import torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters())
running_loss = 0.0
for step in range(16):
    x = torch.randn(8, 4)
    loss = torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
    (loss / 2).backward()
    if step % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
    running_loss = running_loss + loss * x.size(0)
