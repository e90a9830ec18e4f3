# expect: nothing
import os

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
if os.path.exists("backbone.pt"):
    weights = torch.load("backbone.pt", map_location="cpu")
    model.load_state_dict(weights, strict=False)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
