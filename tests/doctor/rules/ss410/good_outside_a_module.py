# expect: nothing
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = F.dropout(torch.randn(8, 4), 0.1)  # noise on the training data
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
