# expect: SS303 line 22
import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self) -> None:
        data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.model = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.warmup = torch.optim.lr_scheduler.LinearLR(
            self.opt, start_factor=0.01, total_iters=2 * len(self.loader)
        )

    def fit(self) -> None:
        for _ in range(4):
            for _, (x, y) in enumerate(self.loader):
                self.opt.zero_grad()
                torch.nn.functional.mse_loss(self.model(x), y).backward()
                self.opt.step()
            self.warmup.step()


Trainer().fit()
