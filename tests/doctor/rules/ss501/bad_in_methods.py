# expect: SS501 line 17
import torch
from torch import nn


class Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch):
        x, y = batch
        return self.loss(self(x), y)


learner = Learner()
learner.training_step((torch.randn(8, 4), torch.randint(3, (8,)))).backward()
