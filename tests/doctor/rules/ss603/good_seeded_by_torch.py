# expect: nothing
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(np.random.normal(size=4)) * random.random()


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


loader = DataLoader(Noisy(), 8, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
for batch in loader:
    print(batch.mean(dtype=torch.float))
