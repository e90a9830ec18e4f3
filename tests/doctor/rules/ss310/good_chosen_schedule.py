# expect: nothing
import sys

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kinds = {"step": torch.optim.lr_scheduler.StepLR, "none": None}
kind = kinds[sys.argv[1] if len(sys.argv) > 1 else "step"]
scheduler = None if kind is None else kind(optimizer, 2)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
