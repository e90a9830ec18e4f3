# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR

model = torch.nn.Linear(4, 1)
later = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = StepLR(later, 2)
for epoch in range(8):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
    optimizer = later  # of all epochs but the first
