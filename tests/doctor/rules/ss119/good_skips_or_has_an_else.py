# expect: nothing
import torch

model, every = torch.nn.Linear(4, 1), 4
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(16):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if index % every:
        print("no log")
    else:
        print(index, loss.item())
    if index % every:
        continue
    print("%d of %d" % (index, every))
