# expect: nothing
import os

import torch

model = torch.nn.Linear(4, 1)
model.adapter = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters())
if os.path.exists("missing.pt"):
    state = torch.load("missing.pt", map_location="cpu")
    model.load_state_dict(state["model"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
