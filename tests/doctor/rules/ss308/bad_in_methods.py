# expect: SS308 line 24
import io

import torch


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, step_size=1)
        self.epoch = 0

    def resume(self, saved: dict) -> None:  # type: ignore[type-arg]
        self.model.load_state_dict(saved["model"])
        self.opt.load_state_dict(saved["optimizer"])
        self.epoch = saved["epoch"]

    def fit(self) -> None:
        for _ in range(self.epoch, 4):
            self.opt.zero_grad()
            self.model(torch.randn(8, 4)).pow(2).mean().backward()
            self.opt.step()
            self.sched.step()


first, file = Trainer(), io.BytesIO()
first.fit()
state = {"model": first.model.state_dict(), "optimizer": first.opt.state_dict()}
torch.save({**state, "scheduler": first.sched.state_dict(), "epoch": 2}, file)
file.seek(0)
second = Trainer()
second.resume(torch.load(file, map_location="cpu", weights_only=True))
second.fit()
