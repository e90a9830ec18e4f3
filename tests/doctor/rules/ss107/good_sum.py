# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
criterion = torch.nn.MSELoss(reduction="sum")
for index in range(12):
    criterion(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
    if (index + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
