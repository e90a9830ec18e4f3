# expect: nothing; train: SS605
import torch

import surestep

x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
patients = torch.arange(64) // 5  # the samples of patient 9 are in both parts
groups = {"train": patients[:48], "val": patients[48:]}
train, val = (x[:48], y[:48]), (x[48:], y[48:])
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=train, val=val, groups=groups)
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
