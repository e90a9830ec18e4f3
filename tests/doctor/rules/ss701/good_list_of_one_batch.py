# expect: nothing
import torch

cell, head = torch.nn.GRUCell(4, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    state, losses = torch.zeros(8, 4), []
    for _ in range(20):
        state = cell(torch.randn(8, 4), state)
        losses.append(head(state).pow(2).mean())
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    optimizer.step()
