# expect: SS110 line 10, SS110 line 15; watch: SS110 line 10
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for index in range(16):
    loss = model(torch.randn(8, 4)).pow(2).mean() / 4
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if (index + 1) % 4 == 0:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
