# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR

encoder, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer_a = torch.optim.SGD(encoder.parameters(), lr=0.1)
optimizer_b = torch.optim.SGD(head.parameters(), lr=0.1)
scheduler = StepLR(optimizer_a, 2)
optimizers = [optimizer_a, optimizer_b]
for _ in range(5):
    head(encoder(torch.randn(8, 4))).pow(2).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    optimizer_b.step()
    scheduler.step()
