# expect: nothing
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    target = F.one_hot(torch.randint(3, (16,)), 3).float()
    optimizer.zero_grad()
    F.mse_loss(model(torch.randn(16, 4)).softmax(1), target).backward()
    optimizer.step()
