# expect: SS801 line 31
import os
import tempfile

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x).relu())


def save(path, model, epoch):
    torch.save({"model": model.state_dict(), "epoch": epoch}, path)


path = os.path.join(tempfile.mkdtemp(), "last.pt")
first = Net()
save(path, first, 1)

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
start = 0
if os.path.exists(path):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    start = checkpoint["epoch"] + 1
for epoch in range(start, 6):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    save(path, model, epoch)
