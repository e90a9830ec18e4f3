# expect: SS805 line 31
import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, folder: str, resume: str = "") -> None:
        self.folder = folder
        self.loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.start_epoch = 0
        if resume:
            state = torch.load(resume, map_location="cpu")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.start_epoch = state["epoch"]

    def train_epoch(self) -> None:
        for (x,) in self.loader:
            self.optimizer.zero_grad()
            self.model(x).pow(2).mean().backward()
            self.optimizer.step()

    def save(self, epoch: int) -> None:
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        state = {"epoch": epoch, "model": model, "optimizer": optimizer}
        torch.save(state, os.path.join(self.folder, f"{epoch}.pt"))

    def fit(self, epochs: int) -> None:
        for epoch in range(self.start_epoch, epochs):
            self.train_epoch()
            self.save(epoch)


runs = tempfile.mkdtemp()
Trainer(runs).fit(3)
Trainer(runs, resume=os.path.join(runs, "2.pt")).fit(5)
