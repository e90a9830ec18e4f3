# expect: nothing; train: nothing
import torch
from torch import nn

import surestep

x = torch.randn(600, 16)
y = x[:, :4].argmax(1)
task = surestep.Task(
    nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4)),
    nn.CrossEntropyLoss(),
    train=(x[:400], y[:400]),
    val=(x[400:], y[400:]),
)
config = surestep.Config(
    max_steps=200,
    batch_size=32,
    max_grad_norm="off",
    validation=surestep.Validation(every="20 steps"),
)
surestep.Trainer(task, config, run="run").fit()
