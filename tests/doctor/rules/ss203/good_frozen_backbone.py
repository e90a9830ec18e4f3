# expect: nothing
import torch

backbone, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
for parameter in backbone.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    head(torch.relu(backbone(torch.randn(8, 4)))).pow(2).mean().backward()
    optimizer.step()
