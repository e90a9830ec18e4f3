# expect: nothing; train: SS116, SS608
import torch

import surestep

x, y = torch.randn(38, 4), torch.arange(38) % 3
net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
task = surestep.Task(net, "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=16, micro_batch_size=4)
surestep.Trainer(task, config, run="run").fit()
