# expect: SS801 line 19
import os
import tempfile

import torch


class Trainer:
    def __init__(self, path: str) -> None:
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.first_epoch = 0
        self.path = path
        if os.path.exists(path):
            self.resume()

    def resume(self) -> None:
        state = torch.load(self.path, map_location="cpu")
        self.net.load_state_dict(state["weights"])
        self.first_epoch = state["next_epoch"]

    def save(self, epoch: int) -> None:
        state = {"weights": self.net.state_dict(), "next_epoch": epoch + 1}
        torch.save(state, f"{self.path}.tmp")
        os.replace(f"{self.path}.tmp", self.path)

    def fit(self, epochs: int) -> None:
        for epoch in range(self.first_epoch, epochs):
            self.optimizer.zero_grad()
            self.net(torch.randn(8, 4)).pow(2).mean().backward()
            self.optimizer.step()
            self.save(epoch)


checkpoint = os.path.join(tempfile.mkdtemp(), "last.pt")
Trainer(checkpoint).fit(3)
Trainer(checkpoint).fit(6)  # as a second start of the script would
