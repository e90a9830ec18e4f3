# expect: nothing; train: nothing
import torch

import surestep

x = torch.randn(96, 4)
y = torch.randn(96, 1)
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:64], y[:64]), val=(x[64:], y[64:]))
config = surestep.Config(
    max_steps=2000,
    batch_size=8,
    schedule=surestep.Schedule(name="cosine"),
    max_grad_norm="off",
    validation=surestep.Validation(every="2 steps"),
    early_stop=surestep.EarlyStop(patience=2),
)
surestep.Trainer(task, config, run="run").fit()
