# expect: nothing; train: nothing
import torch
from torch import nn

import surestep


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


x = torch.randn(800, 4)
y = (x[:, 0] > 0).long()
x[:, 0] += 3 * y
task = surestep.Task(
    nn.Linear(4, 2),
    nn.CrossEntropyLoss(),
    train=(x[:600], y[:600]),
    val=(x[600:], y[600:]),
    metrics={"accuracy": accuracy},
)
config = surestep.Config(
    max_steps=200,
    batch_size=32,
    max_grad_norm="off",
    validation=surestep.Validation(every="20 steps"),
)
surestep.Trainer(task, config, run="run").fit()
