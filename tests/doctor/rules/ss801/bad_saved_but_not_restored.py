# expect: SS801 line 16
import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(path: str, epochs: int) -> None:
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    start = 0
    if os.path.exists(path):
        checkpoint = torch.load(path, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        weights, moments = model.state_dict(), optimizer.state_dict()
        state = {"model": weights, "optimizer": moments, "epoch": epoch}
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


checkpoint_path = os.path.join(tempfile.mkdtemp(), "last.pt")
train(checkpoint_path, 2)
train(checkpoint_path, 4)  # as a second start of the script would
