# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 2)
for _ in range(5):
    for optimizer in optimizers:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    scheduler.step()
