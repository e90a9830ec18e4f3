# expect: nothing; train: SS505
import torch

import surestep

x, y = torch.randn(60, 4), torch.arange(60) % 3
y[40:] = -1
task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
config = surestep.Config(max_steps=2, batch_size=8, data=surestep.Data(shuffle=False))
surestep.Trainer(task, config, run="run").fit()
