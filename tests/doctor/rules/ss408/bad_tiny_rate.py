# expect: nothing; train: SS408
import torch

import surestep

x = torch.randn(128, 4)
y = (x[:, 0] > 0).long()
task = surestep.Task(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), train=(x, y))
optim = surestep.Optim(lr=1e-9)
config = surestep.Config(max_steps=150, batch_size=64, optim=optim, max_grad_norm="off")
surestep.Trainer(task, config, run="run").fit()
