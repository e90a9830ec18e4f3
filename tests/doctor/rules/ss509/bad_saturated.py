# expect: nothing; watch: SS509 line 14
import torch
from torch import nn

head = nn.Linear(4, 3)
with torch.no_grad():
    head.bias.copy_(torch.tensor([40.0, 0.0, 0.0]))
model, loss = nn.Sequential(head, nn.Softmax(1)), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x = torch.randn(16, 4)
    wanted = nn.functional.one_hot((x[:, 0] > 0).long(), 3).float()
    optimizer.zero_grad()
    loss(model(x), wanted).backward()
    optimizer.step()
