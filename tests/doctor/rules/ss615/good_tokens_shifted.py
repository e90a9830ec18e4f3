# expect: nothing; train: nothing
import torch

import surestep

tokens = torch.randint(30, (60, 9))
x, y = tokens[:, :-1], tokens[:, 1:]
net = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Linear(8, 30))
task = surestep.Task(net, surestep.losses.multiclass(class_dim=-1), train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
