# expect: nothing; train: SS307, SS609
import torch

import surestep

x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
x[:8] = float("nan")
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y))
config = surestep.Config(
    max_steps=60,
    batch_size=8,
    schedule=surestep.Schedule(name="cosine"),
    on_nonfinite="skip",
    max_grad_norm="off",
)
surestep.Trainer(task, config, run="run").fit()
