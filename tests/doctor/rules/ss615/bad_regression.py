# expect: nothing; train: SS615
import torch

import surestep

x = torch.randn(60, 4)
y = x[:, 3:]
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
