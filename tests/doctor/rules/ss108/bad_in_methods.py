# expect: SS108 line 20; watch: SS108 line 15
import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, accumulate: int) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.accumulate = accumulate
        data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)

    def train_epoch(self) -> None:
        self.opt.zero_grad()
        for i, (x, y) in enumerate(self.loader, 1):
            loss = torch.nn.functional.mse_loss(self.model(x), y)
            (loss / self.accumulate).backward()
            if i % self.accumulate == 0:
                self.opt.step()
                self.opt.zero_grad()

    def fit(self) -> None:
        for _ in range(3):
            self.train_epoch()


Trainer(2).fit()
