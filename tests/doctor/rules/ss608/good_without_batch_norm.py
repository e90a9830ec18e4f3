# expect: nothing; train: nothing
import torch

import surestep

x, y = torch.randn(33, 4), torch.arange(33) % 3
task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
