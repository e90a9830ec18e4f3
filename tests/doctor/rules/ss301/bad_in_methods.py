# expect: SS301 line 13
import torch


class Learner:
    def __init__(self) -> None:
        self.net = torch.nn.Linear(4, 1)
        self.opt = torch.optim.AdamW(self.net.parameters())
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, T_max=10)

    def fit(self) -> None:
        for _ in range(10):
            self.sched.step()
            self.train_batch(torch.randn(8, 4))

    def train_batch(self, x: torch.Tensor) -> None:
        self.opt.zero_grad()
        self.net(x).pow(2).mean().backward()
        self.opt.step()


Learner().fit()
