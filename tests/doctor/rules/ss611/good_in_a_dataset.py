# expect: nothing
import random

import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.ones(4) * random.random()


torch.manual_seed(0)
loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)
