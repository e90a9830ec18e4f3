# expect: nothing
import random

import torch
from torch.utils.data import DataLoader, Dataset


class Scaled(Dataset):
    def __init__(self) -> None:
        self.random = random.Random(0)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.ones(4) * self.random.random()


loader = DataLoader(Scaled(), batch_size=8, shuffle=True)
for batch in loader:
    print(batch.mean(dtype=torch.float))
