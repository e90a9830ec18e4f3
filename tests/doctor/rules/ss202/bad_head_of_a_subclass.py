# expect: SS202 line 25; watch: nothing
import torch
from torch import nn


def load():
    body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    body.fc = nn.Linear(8, 2)
    return body


class Base:
    def __init__(self, factory):
        self.model = factory()
        kept = []
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                kept.append(parameter)
        self.optimizer = torch.optim.Adam(kept)


class Finetuned(Base):
    def __init__(self, factory):
        super().__init__(factory)
        self.model.fc = nn.Linear(8, 3)


trainer = Finetuned(load)
trainer.model(torch.randn(8, 4)).sum().backward()
