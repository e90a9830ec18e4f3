# expect: nothing; train: SS607
import torch
from torch import nn

import surestep


def accuracy(outputs, targets):
    return ((outputs > 0) == (targets > 0.5)).float().mean()


x = torch.randn(600, 6)
churned = (x[:, :1] + torch.randn(600, 1) > 0).float()
refund = 50 * churned - 25  # known only after the customer has left
x = torch.cat([x, refund], 1)
task = surestep.Task(
    nn.Linear(7, 1),
    nn.BCEWithLogitsLoss(),
    train=(x[:400], churned[:400]),
    val=(x[400:], churned[400:]),
    metrics={"accuracy": accuracy},
)
config = surestep.Config(
    max_steps=300,
    batch_size=32,
    optim=surestep.Optim(lr=0.1),
    schedule=surestep.Schedule(warmup="0 steps"),
    max_grad_norm="off",
    validation=surestep.Validation(every="25 steps"),
)
surestep.Trainer(task, config, run="run").fit()
