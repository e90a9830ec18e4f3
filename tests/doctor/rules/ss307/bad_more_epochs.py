# expect: nothing; watch: SS307 line 11
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, epochs: int) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=100)
        self.epochs = epochs

    def fit(self, loader) -> None:
        for _ in range(self.epochs):
            for x, y in loader:
                loss = torch.nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()


data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
Trainer(epochs=10).fit(DataLoader(data, batch_size=8, shuffle=True))
