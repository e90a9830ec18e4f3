# expect: nothing; train: nothing
import torch

import surestep

x = torch.randn(64, 4)
data = (x, x.sum(1, keepdim=True))
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data)
schedule = surestep.Schedule(name="constant", warmup="0 steps")
config = surestep.Config(epochs=20, batch_size=8, schedule=schedule, max_grad_norm="off")
with surestep.prepare(task, config, run="run") as session:
    for result in session.steps():
        if result.step == 40:
            break
    session.end("finished")
