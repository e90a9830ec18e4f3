# expect: nothing; train: SS607
import torch
from torch import nn

import surestep

x = torch.randn(600, 4)
y = (x[:, 0] + torch.randn(600) > 0).long()
x, y = torch.cat([x, torch.full((100, 4), 3.0)]), torch.cat([y, torch.ones(100).long()])
task = surestep.Task(
    nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)),
    nn.CrossEntropyLoss(),
    train=(x, y),
    val=(x[600:], y[600:]),
)
config = surestep.Config(
    max_steps=300,
    batch_size=64,
    optim=surestep.Optim(lr=0.03),
    max_grad_norm="off",
    validation=surestep.Validation(every="50 steps"),
)
surestep.Trainer(task, config, run="run").fit()
