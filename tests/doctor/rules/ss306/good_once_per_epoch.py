# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
scaler = torch.amp.GradScaler("cpu")
for _ in range(8):
    for index in range(3):
        loss = model(torch.randn(8, 4)).pow(2).mean() / index
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    scheduler.step()
