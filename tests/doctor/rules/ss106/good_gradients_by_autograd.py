# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    for p, grad in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
        p.grad = grad
    optimizer.step()
