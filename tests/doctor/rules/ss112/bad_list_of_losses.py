# expect: SS112 line 10
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    losses = [model(torch.randn(8, 4)).pow(2).mean().detach() for _ in range(2)]
    total = torch.tensor(losses, requires_grad=True).mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
