# expect: nothing
import torch
from torch import nn


class Base:
    def __init__(self, factory):
        self.model = factory()
        self.add_head()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def add_head(self):
        pass


class Finetuned(Base):
    def add_head(self):
        self.model.fc = nn.Linear(8, 3)


trainer = Finetuned(lambda: nn.Sequential(nn.Linear(4, 8)))
trainer.model(torch.randn(8, 4)).sum().backward()
