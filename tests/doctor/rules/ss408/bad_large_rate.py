# expect: nothing; train: SS408
import torch

import surestep

torch.manual_seed(0)
x = torch.randn(256, 8)
task = surestep.Task(torch.nn.Linear(8, 1), "mse", train=(x, x.sum(1, keepdim=True)))
config = surestep.Config(
    max_steps=150,
    batch_size=256,
    optim=surestep.Optim(name="sgd", lr=0.75, momentum=0.0),
    schedule=surestep.Schedule(name="constant"),
    max_grad_norm="off",
)
surestep.Trainer(task, config, run="run").fit()
