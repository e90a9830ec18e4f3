# expect: SS101 line 9
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for index in range(12):
    (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    if index % 2 == 1:
        optimizer.step()
