# expect: SS302 line 20
import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, step_size=4, gamma=0.5)
        data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
        self.train_loader = DataLoader(data, batch_size=8, shuffle=True)

    def fit(self) -> None:
        for _ in range(10):
            for _, (x, y) in enumerate(self.train_loader):
                self.opt.zero_grad()
                torch.nn.functional.mse_loss(self.model(x), y).backward()
                self.opt.step()
                self.sched.step()


Trainer().fit()
