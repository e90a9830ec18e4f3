# expect: nothing; watch: SS408 line 16
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, lr: float) -> None:
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.loss_fn = nn.MSELoss()

    def train_step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, loader, epochs: int) -> None:
        for _ in range(epochs):
            for inputs, targets in loader:
                self.train_step(inputs, targets)


torch.manual_seed(0)
x = torch.randn(256, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
Trainer(lr=0.75).fit(DataLoader(data, batch_size=256), epochs=150)
