# expect: nothing; train: SS601
import torch

import surestep

x, y = torch.randn(60, 4), torch.arange(3).repeat_interleave(20)
task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
config = surestep.Config(max_steps=3, batch_size=8, data=surestep.Data(shuffle=False))
surestep.Trainer(task, config, run="run").fit()
