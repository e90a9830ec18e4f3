# expect: nothing; train: nothing
import torch
from torch import nn

import surestep

x = torch.randn(512, 8)
y = x[:, :3].argmax(1)
task = surestep.Task(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)),
    nn.CrossEntropyLoss(),
    train=(x[:384], y[:384]),
    val=(x[384:], y[384:]),
)
config = surestep.Config(
    max_steps=200,
    batch_size=32,
    optim=surestep.Optim(lr=0.01),
    max_grad_norm="off",
    validation=surestep.Validation(every="20 steps"),
)
surestep.Trainer(task, config, run="run").fit()
