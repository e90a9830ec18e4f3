# expect: SS204 line 11; train: SS204
import torch
from torch import nn

import surestep


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.layers = nn.Linear(4, 1), {}
        self.layers["first"] = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.layers["first"](x)
        return self.head(features)


x = torch.randn(64, 4)
task = surestep.Task(Net(), "mse", train=(x, x.sum(1, keepdim=True)))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
