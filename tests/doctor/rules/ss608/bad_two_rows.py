# expect: nothing; train: SS608
import torch

import surestep

x, y = torch.randn(34, 4), torch.arange(34) % 3
net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
task = surestep.Task(net, "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
