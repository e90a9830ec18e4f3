# expect: nothing; train: nothing
import torch

import surestep


class Noisy(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index] + 0.1 * torch.randn(4)
        return row, row.sum(0, keepdim=True)


rows = torch.randn(96, 4)
task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Noisy(rows[:64]), val=Noisy(rows[64:]))
config = surestep.Config(max_steps=3, batch_size=8)
surestep.Trainer(task, config, run="run").fit()
