# expect: nothing; train: nothing
import torch

import surestep

x, y = torch.randn(60, 4), torch.arange(60) % 3
x[:, 1] *= 1e-6
net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
task = surestep.Task(net, "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
