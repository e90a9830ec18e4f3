# expect: nothing
import torch

model = torch.nn.Linear(4, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
newest = {}
for _ in range(8):
    for task in range(6):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        newest[task] = model(x)[:, task].pow(2).mean()
        newest[task].backward()
        optimizer.step()
