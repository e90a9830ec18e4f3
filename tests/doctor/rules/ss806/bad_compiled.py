# expect: SS806 line 19
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)


class Trainer:
    def __init__(self):
        self.model = torch.compile(Net())

    def save(self, file):
        torch.save({"weights": self.model.state_dict()}, file)


Trainer().save(io.BytesIO())
