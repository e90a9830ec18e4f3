# expect: nothing; train: SS605
import torch

import surestep

images = torch.rand(40, 3, 8, 8).repeat(2, 1, 1, 1)
images += 1e-4 * torch.randn_like(images)
labels = torch.arange(2).repeat(40)
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
train, val = (images[:60], labels[:60]), (images[60:], labels[60:])
task = surestep.Task(net, "multiclass", train=train, val=val)
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
