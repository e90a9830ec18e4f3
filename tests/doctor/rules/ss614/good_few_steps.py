# expect: nothing; train: nothing
import time

import torch
from torch.utils.data import Dataset

import surestep


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((4,), index / 64), torch.full((1,), float(index % 5))


task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Rows())
config = surestep.Config(max_steps=8, batch_size=8, logging={"every": "1 steps"})
surestep.Trainer(task, config, run="run").fit()
