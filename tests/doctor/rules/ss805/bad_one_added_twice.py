# expect: SS805 line 33
import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset


def resume(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"] + 1


folder = tempfile.mkdtemp()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# As an earlier run left it.
parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
torch.save({**parts, "epoch": 4}, f"{folder}/4.pt")

loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
last = f"{folder}/4.pt"
first = resume(last, model, optimizer) if os.path.exists(last) else 0
for epoch in range(first, 8):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    weights, state = model.state_dict(), optimizer.state_dict()
    checkpoint = {"model": weights, "optimizer": state, "epoch": epoch + 1}
    torch.save(checkpoint, f"{folder}/{epoch + 1}.pt")
