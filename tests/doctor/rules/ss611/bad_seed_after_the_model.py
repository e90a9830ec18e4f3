# expect: SS611 line 5
import torch

model = torch.nn.Linear(4, 1)
torch.manual_seed(0)
x = torch.randn(20, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
