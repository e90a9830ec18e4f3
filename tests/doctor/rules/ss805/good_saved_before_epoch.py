# expect: nothing
import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(path: str, epochs: int) -> None:
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = 0
    if os.path.exists(path):
        checkpoint = torch.load(path, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"]
    for epoch in range(start, epochs):
        weights, state = model.state_dict(), optimizer.state_dict()
        torch.save({"model": weights, "optimizer": state, "epoch": epoch}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()


checkpoint_path = os.path.join(tempfile.mkdtemp(), "last.pt")
train(checkpoint_path, 3)
train(checkpoint_path, 6)
