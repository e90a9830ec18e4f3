# expect: nothing
import torch

experts = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(3))
optimizer = torch.optim.Adam(experts.parameters())
for index in range(12):
    optimizer.zero_grad()
    experts[index % 3](torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
