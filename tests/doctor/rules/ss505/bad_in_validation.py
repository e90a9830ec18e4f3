# expect: nothing; train: SS505
import torch

import surestep

x, y = torch.randn(60, 4), torch.arange(60) % 3
task = surestep.Task(
    torch.nn.Linear(4, 3),
    "multiclass",
    train=(x, y),
    test=(torch.randn(20, 4), 1 + torch.arange(20) % 3),
)
config = surestep.Config(max_steps=2, batch_size=8, validation=surestep.Validation(every="off"))
surestep.Trainer(task, config, run="run").fit()
