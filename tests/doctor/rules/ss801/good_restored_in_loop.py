# expect: nothing
import os
import tempfile

import torch


def train(path, epochs):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    start = 0
    parts = {"model": model, "optimizer": optimizer}
    if os.path.exists(path):
        checkpoint = torch.load(path, map_location="cpu")
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, epochs):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "epoch": epoch}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


checkpoint_path = os.path.join(tempfile.mkdtemp(), "last.pt")
train(checkpoint_path, 3)
train(checkpoint_path, 6)
