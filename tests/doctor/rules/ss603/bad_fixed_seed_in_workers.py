# expect: SS603 line 19; watch: SS603 line 20
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(np.random.normal(size=4))


def seed_worker(worker_id):
    np.random.seed(42)


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
for batch in loader:
    print(batch.mean(dtype=torch.float))
