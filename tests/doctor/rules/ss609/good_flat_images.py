# expect: nothing; train: nothing
import torch

import surestep

images, y = torch.rand(60, 12, 12), torch.arange(60) % 3
images[:, 0] = 0  # the border
images[:, 1] *= 1e-6
x = images.flatten(1)
task = surestep.Task(torch.nn.Linear(144, 3), "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
