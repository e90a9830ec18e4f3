# expect: SS112 line 13
import torch
from torch import nn

model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.L1Loss()
for _ in range(5):
    output = model(torch.randn(8, 4))
    predicted = output.argmax(dim=1).float()
    loss = criterion(predicted, torch.ones(8)).requires_grad_()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
