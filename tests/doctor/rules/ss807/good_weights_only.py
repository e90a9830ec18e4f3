# expect: nothing
import os
import tempfile

import torch

path = os.path.join(tempfile.mkdtemp(), "best.pt")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    torch.save(model.state_dict(), path)
model.load_state_dict(torch.load(path, map_location="cpu"))
