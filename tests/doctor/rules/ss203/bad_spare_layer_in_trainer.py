# expect: SS203 line 11; train: SS203
import torch
from torch import nn

import surestep


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


x = torch.randn(64, 4)
task = surestep.Task(Net(), "mse", train=(x, x.sum(1, keepdim=True)))
config = surestep.Config(max_steps=30, batch_size=8, max_grad_norm="off")
surestep.Trainer(task, config, run="run").fit()
