# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(8):
    (model(torch.randn(8, 4)).pow(2).mean() / 4).backward()
    if (index + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
