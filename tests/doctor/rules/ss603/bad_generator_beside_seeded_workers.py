# expect: SS603 line 23; watch: SS603 line 24
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self) -> None:
        self.data = torch.randn(64, 4)
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index] + self.rng.normal(0, 0.1)


def seed_worker(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


loader = DataLoader(Noisy(), 8, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
for batch in loader:
    print(batch.mean(dtype=torch.float))
