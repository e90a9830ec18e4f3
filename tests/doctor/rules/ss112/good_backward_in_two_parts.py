# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    output = model(torch.randn(8, 4))
    leaf = output.detach().requires_grad_()
    optimizer.zero_grad()
    leaf.pow(2).mean().backward()
    output.backward(leaf.grad)
    optimizer.step()
