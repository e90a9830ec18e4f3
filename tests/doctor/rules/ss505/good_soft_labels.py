# expect: nothing
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    x, y = torch.randn(16, 4), F.one_hot(torch.randint(3, (16,)), 3).float()
    share, order = torch.rand(()), torch.randperm(16)
    mixed = share * x + (1 - share) * x[order]
    optimizer.zero_grad()
    F.cross_entropy(model(mixed), share * y + (1 - share) * y[order]).backward()
    optimizer.step()
