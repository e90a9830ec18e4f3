# expect: nothing
import torch

cell, head = torch.nn.GRUCell(3, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
hidden = torch.zeros(2, 4)
for _ in range(3):
    optimizer.zero_grad()
    hidden = cell(torch.randn(2, 3), hidden)
    head(hidden).pow(2).mean().backward(retain_graph=True)
    optimizer.step()
