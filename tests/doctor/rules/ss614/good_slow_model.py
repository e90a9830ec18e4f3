# expect: nothing; train: nothing
import time

import torch
from torch.utils.data import TensorDataset

import surestep


class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)


x = torch.randn(64, 4)
task = surestep.Task(Slow(4, 1), "mse", train=TensorDataset(x, x.sum(1, keepdim=True)))
config = surestep.Config(
    max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
)
surestep.Trainer(task, config, run="run").fit()
