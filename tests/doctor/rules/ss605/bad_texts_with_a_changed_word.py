# expect: nothing; train: SS605
import torch

import surestep

texts = torch.randint(2, 500, (40, 120)).repeat(2, 1)
texts[40:, 7] = 1
labels = torch.arange(2).repeat(40)
net = torch.nn.Sequential(torch.nn.Embedding(500, 4), torch.nn.Flatten(), torch.nn.Linear(480, 2))
train, val = (texts[:50], labels[:50]), (texts[50:], labels[50:])
task = surestep.Task(net, "multiclass", train=train, val=val)
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
