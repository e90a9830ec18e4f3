# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, 8, shuffle=True)
for name, is_fast in zip(("float32", "bfloat16"), (False, True), strict=True):
    torch.manual_seed(0)
    for x, y in loader:
        with torch.autocast("cpu", enabled=is_fast):
            loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(name, loss.item())
