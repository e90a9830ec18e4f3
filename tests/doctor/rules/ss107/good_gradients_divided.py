# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(12):
    model(torch.randn(8, 4)).pow(2).mean().backward()
    if (index + 1) % 4 == 0:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(4)
        optimizer.step()
        optimizer.zero_grad()
