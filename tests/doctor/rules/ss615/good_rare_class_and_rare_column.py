# expect: nothing; train: nothing
import torch

import surestep

x, y = torch.zeros(60, 4), torch.zeros(60, dtype=torch.long)
x[7, 1] = 1
y[7] = 1  # by chance, as with many rare columns
x[::2, 0] = 1
task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
config = surestep.Config(
    max_steps=3,
    batch_size=8,
    doctor=surestep.Doctor(ignore=("SS610=it is rare", "SS609=rare columns")),
)
surestep.Trainer(task, config, run="run").fit()
