# expect: nothing
import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset

path = os.path.join(tempfile.mkdtemp(), "best.pt")
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
epoch = 0
for parameters, lr in ((model[1].parameters(), 1e-2), (model.parameters(), 1e-3)):
    if epoch > 0:
        model.load_state_dict(torch.load(path, map_location="cpu")["model"])
    optimizer = torch.optim.Adam(parameters, lr=lr)
    for _ in range(3):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        epoch += 1
        torch.save({"model": model.state_dict(), "epoch": epoch}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
