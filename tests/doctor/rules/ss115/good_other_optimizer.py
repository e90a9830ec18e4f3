# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Rprop(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
