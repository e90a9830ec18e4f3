# expect: SS807 line 22
import os
import tempfile
from pathlib import Path

import torch


class Trainer:
    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "last.pt"
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def resume(self) -> None:
        state = torch.load(self.path, map_location="cpu")
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self) -> None:
        net, optimizer = self.net.state_dict(), self.optimizer.state_dict()
        torch.save({"net": net, "optimizer": optimizer}, self.path)

    def fit(self) -> None:
        for _ in range(3):
            self.optimizer.zero_grad()
            self.net(torch.randn(8, 4)).pow(2).mean().backward()
            self.optimizer.step()
            self.save()


trainer = Trainer(tempfile.mkdtemp())
if os.path.exists(trainer.path):
    trainer.resume()
trainer.fit()
