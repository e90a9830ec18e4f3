# expect: nothing; train: nothing
import torch

import surestep

x, y = torch.rand(60, 1, 4, 4), torch.arange(60) % 3
x[:, :, 0] = 0  # the border
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
task = surestep.Task(net, "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
