# expect: nothing; train: SS606
import torch

import surestep

x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
order = torch.randperm(64)
train, val = order[:48], order[48:]
task = surestep.Task(
    torch.nn.Linear(4, 1),
    "mse",
    train=(x[train], y[train]),
    val=(x[val], y[val]),
    times={"train": train, "val": val},
)
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
