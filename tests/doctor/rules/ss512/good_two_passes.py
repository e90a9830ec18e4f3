# expect: nothing
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    first, second = model(x), model(x)
    agreement = F.kl_div(F.log_softmax(first, 1), F.softmax(second, 1), reduction="batchmean")
    loss = F.cross_entropy(first, y) + agreement
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
