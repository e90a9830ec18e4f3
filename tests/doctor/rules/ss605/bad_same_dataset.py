# expect: nothing; train: SS605
import torch

import surestep

x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
val = {"old": torch.utils.data.Subset(data, range(64)), "new": data}
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data, val=val)
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
