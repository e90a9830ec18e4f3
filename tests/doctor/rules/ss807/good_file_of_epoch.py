# expect: nothing
import os
import tempfile

import torch

folder = tempfile.mkdtemp()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if files := sorted(os.listdir(folder)):
    state = torch.load(os.path.join(folder, files[-1]), map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
for epoch in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, os.path.join(folder, f"{epoch:04}.pt"))
