# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for index in range(12):
    model(torch.randn(8, 4)).pow(2).mean().backward()
    if (index + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
