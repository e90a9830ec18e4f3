# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.randn(8, 4)).pow(2).mean().backward()
    signs = [p.grad.sign() for p in model.parameters() if p.grad is not None]
    optimizer.zero_grad()
    for p, sign in zip(model.parameters(), signs):
        p.grad = sign
    optimizer.step()
    optimizer.zero_grad()
