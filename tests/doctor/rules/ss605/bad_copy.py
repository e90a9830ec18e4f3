# expect: nothing; train: SS605
import torch

import surestep

x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
val = (x.clone(), y.clone())
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y), val=val)
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
