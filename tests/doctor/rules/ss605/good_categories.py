# expect: nothing; train: nothing
import torch

import surestep

x = torch.randint(3, (96, 4)).float()  # 81 possible rows
y = x.sum(1, keepdim=True)
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:64], y[:64]), val=(x[64:], y[64:]))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
