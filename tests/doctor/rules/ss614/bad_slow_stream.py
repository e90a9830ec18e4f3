# expect: nothing; train: SS614
import time

import torch
from torch.utils.data import IterableDataset

import surestep


class Lines(IterableDataset):
    def __iter__(self):
        for index in range(400):
            time.sleep(0.003)  # reads from a server
            yield torch.full((4,), index / 400), torch.full((1,), 1 - index / 400)


task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Lines())
config = surestep.Config(
    max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
)
surestep.Trainer(task, config, run="run").fit()
