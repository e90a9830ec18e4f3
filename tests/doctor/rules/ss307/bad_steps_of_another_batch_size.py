# expect: nothing; train: SS307
import torch

import surestep

x = torch.randn(256, 4)
y = x.sum(1, keepdim=True)
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y))
schedule = surestep.Schedule(name="linear")
config = surestep.Config(max_steps=256 // 8, schedule=schedule, max_grad_norm="off")
with surestep.prepare(task, config, run="run") as session:
    for rows in torch.arange(256).split(32):
        session.train_step([(x[rows], y[rows])])
    session.end("finished")
