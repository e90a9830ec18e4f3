# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
flat = torch.zeros(5)  # all gradients in one tensor
for parameter, part in zip(model.parameters(), flat.split((4, 1)), strict=True):
    parameter.grad = part.view_as(parameter)
for _ in range(10):
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
