# expect: nothing
import os

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
resumed = torch.nn.Linear(4, 1)
if os.path.exists("missing.pt"):
    state = {"model": model.state_dict()}
    resumed.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
