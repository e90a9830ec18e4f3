# expect: nothing
import torch
from torch.optim.lr_scheduler import LambdaLR

model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = LambdaLR(optimizer, lambda step: min(1.0, 1e-6 + step / 200))
for _ in range(700):
    x = torch.randn(8, 16)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x[:, :4]).backward()
    optimizer.step()
    schedule.step()
