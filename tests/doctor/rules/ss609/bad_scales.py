# expect: nothing; train: SS609
import torch

import surestep

x, y = torch.randn(60, 4), torch.arange(60) % 3
x[:, 1] *= 1e-6  # a column in other units
task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
config = surestep.Config(max_steps=2, batch_size=8, max_grad_norm="off")
surestep.Trainer(task, config, run="run").fit()
