# expect: SS106 line 8
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(128, 4)
for i in range(16):
    optimizer.zero_grad()
    loss = model(x[8 * i : 8 * i + 8]).pow(2).mean() / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
