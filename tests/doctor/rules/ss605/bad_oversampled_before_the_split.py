# expect: nothing; train: SS605
import torch

import surestep

x = torch.randn(64, 4).repeat(2, 1)
order = torch.randperm(128)
x, y = x[order], x[order].sum(1, keepdim=True)
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:96], y[:96]), val=(x[96:], y[96:]))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
