# expect: SS101 line 10
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(20):
    loss = model(torch.randn(8, 4)).pow(2).mean() / 4
    loss.backward()
    if (index + 1) % 4 == 0:
        optimizer.step()
