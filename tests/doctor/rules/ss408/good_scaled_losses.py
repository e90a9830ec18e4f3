# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(256, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=5)
for epoch in range(16):
    for inputs, targets in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
