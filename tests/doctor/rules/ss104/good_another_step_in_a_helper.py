# expect: nothing
import torch


def take(optimizer):
    optimizer.step()


def finish(optimizer, *values):
    print(*values)
    take(optimizer)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(model.parameters(), lr=0.01)
for index in range(6):
    for _ in range(1):
        finish(other), finish(other), finish(other), finish(other), finish(other)
        finish(other), finish(other), finish(other), finish(other), finish(other)
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    finish(other), finish(other), finish(other), finish(other)
