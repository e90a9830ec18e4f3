# expect: nothing; watch: SS408 line 11, SS609 line 11
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    if step == 3:
        x[5, 2] = float("nan")
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
