# expect: SS807 line 18
import os

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.path.exists("checkpoint.pt"):
    state = torch.load("checkpoint.pt", map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if step % 100 == 99:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, "checkpoint.pt")
