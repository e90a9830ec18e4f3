# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    parts = torch.randn(16, 4).split(4)
    for index, part in enumerate(parts):
        if index == 0:
            optimizer.zero_grad()
        loss = model(part).pow(2).mean() / len(parts)
        loss.backward()
    optimizer.step()
    for part in parts:  # gradients of each part, which are kept
        optimizer.zero_grad()
        model(part).pow(2).mean().backward()
        gradient = model.weight.grad
    model.weight.grad = gradient
    optimizer.step()
