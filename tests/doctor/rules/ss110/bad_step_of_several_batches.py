# expect: SS110 line 13; watch: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for i in range(8):
    loss = model(torch.randn(8, 4)).pow(2).mean() / 2
    scaler.scale(loss).backward()
    if i % 2 == 1:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scaler.update()
        optimizer.zero_grad()
