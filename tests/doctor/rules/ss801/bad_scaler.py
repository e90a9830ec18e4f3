# expect: SS801 line 20
import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset

folder = tempfile.mkdtemp()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cpu", enabled=True)
# As an earlier run left it.
weights, moments = model.state_dict(), optimizer.state_dict()
torch.save({"model": weights, "optimizer": moments, "epoch": 5}, f"{folder}/5.pt")

loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
start = 0
if os.path.exists(f"{folder}/5.pt"):
    checkpoint = torch.load(f"{folder}/5.pt", map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["epoch"]
for epoch in range(start, 8):
    for (x,) in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    weights, moments = model.state_dict(), optimizer.state_dict()
    state = {"model": weights, "optimizer": moments, "epoch": epoch + 1}
    torch.save(state, f"{folder}/{epoch + 1}.pt")
