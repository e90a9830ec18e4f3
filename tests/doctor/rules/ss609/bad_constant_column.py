# expect: nothing; train: SS609
import torch

import surestep

x, y = torch.randn(60, 4), torch.arange(60) % 3
x[:, 3] = 7.0
task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
