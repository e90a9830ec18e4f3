# expect: SS112 line 9
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean().detach().requires_grad_(True)
    loss.backward()
    optimizer.step()
