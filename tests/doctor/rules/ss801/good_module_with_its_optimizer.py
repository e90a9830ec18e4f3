# expect: nothing
import os
import tempfile

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.layer.parameters())

    def forward(self, x):
        return self.layer(x)

    def save(self, path, epoch):
        state = {"layer": self.layer.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({"net": state, "epoch": epoch}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)

    def load_state_dict(self, state):
        self.layer.load_state_dict(state["layer"])
        self.optimizer.load_state_dict(state["optimizer"])


path = os.path.join(tempfile.mkdtemp(), "last.pt")
Net().save(path, 1)

net = Net()
start = 0
if os.path.exists(path):
    checkpoint = torch.load(path)
    net.load_state_dict(checkpoint["net"])
    start = checkpoint["epoch"] + 1
for epoch in range(start, 6):
    net.optimizer.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    net.optimizer.step()
    net.save(path, epoch)
