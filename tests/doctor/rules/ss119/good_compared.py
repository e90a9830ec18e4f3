# expect: nothing
import torch

model, every = torch.nn.Linear(4, 1), 4
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(16):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not index % every or index == 15:
        print(index, loss.item())
    if index % every != 0 or index == 0:
        continue
    print(index)
