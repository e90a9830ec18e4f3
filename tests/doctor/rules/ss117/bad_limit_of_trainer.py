# expect: nothing; train: SS117
import torch

import surestep

x = torch.randn(64, 4)
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
config = surestep.Config(max_steps=30, batch_size=8, max_grad_norm=1e-3)
surestep.Trainer(task, config, run="run").fit()
