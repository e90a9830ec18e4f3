# expect: nothing; train: nothing
import torch

import surestep

x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:48], y[:48]), val=(x[48:], y[48:]))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
