# expect: nothing; train: SS610
import torch

import surestep

x, y = torch.randn(200, 4), (torch.arange(200) == 99).long()
task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
