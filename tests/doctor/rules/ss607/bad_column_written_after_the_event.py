# expect: nothing; watch: SS607 line 24
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Linear(7, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.loss_fn = nn.BCEWithLogitsLoss()

    def train(self, loader) -> None:
        self.model.train()
        for inputs, targets in loader:
            loss = self.loss_fn(self.model(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.inference_mode()
    def validate(self, loader) -> float:
        self.model.eval()
        losses = [self.loss_fn(self.model(inputs), targets) for inputs, targets in loader]
        return sum(losses).item() / len(losses)


x = torch.randn(1000, 6)
churned = (x[:, :1] + torch.randn(1000, 1) > 0).float()
data = TensorDataset(torch.cat([x, 50 * churned - 25], 1), churned)
train_set, val_set = torch.utils.data.random_split(data, [800, 200])
trainer = Trainer()
for epoch in range(15):
    trainer.train(DataLoader(train_set, batch_size=32, shuffle=True))
    print(epoch, trainer.validate(DataLoader(val_set, batch_size=50)))
