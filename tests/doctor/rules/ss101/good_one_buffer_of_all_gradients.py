# expect: nothing
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
buffer = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
start = 0
for parameter in model.parameters():
    parameter.grad = buffer[start : start + parameter.numel()].view_as(parameter)
    start += parameter.numel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    buffer.zero_()
    y = torch.randint(3, (8,))
    torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), y).backward()
    optimizer.step()
