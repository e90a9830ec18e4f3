# expect: nothing; train: nothing
import torch

import surestep

x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
train, val = torch.utils.data.random_split(data, [48, 16])
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=train, val=val)
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
