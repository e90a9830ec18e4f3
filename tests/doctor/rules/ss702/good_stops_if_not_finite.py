# expect: nothing
import math

import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    loss = model(torch.randn(8, 4, device=device)).pow(2).mean()
    if not math.isfinite(loss.item()):
        raise RuntimeError("The loss is not finite.")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
