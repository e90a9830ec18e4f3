# expect: SS611 line 6
import numpy as np
import torch

torch.manual_seed(0)
x = torch.tensor(np.random.randn(20, 4), dtype=torch.float32)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
