# expect: nothing
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(model: torch.nn.Module, path: str, epochs: int) -> None:
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, path)


folder = tempfile.mkdtemp()
train(torch.nn.Linear(4, 1), f"{folder}/pretrained.pt", 3)
tuned = torch.nn.Linear(4, 1)
pretrained = torch.load(f"{folder}/pretrained.pt", map_location="cpu")
tuned.load_state_dict(pretrained["model"])
train(tuned, f"{folder}/tuned.pt", 5)
