# expect: nothing
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Fixed(Dataset):
    def __init__(self, seed) -> None:
        self.seed = seed
        self.order = np.random.default_rng(seed).permutation(64)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, int(self.order[index])))
        return torch.tensor(rng.normal(size=4))


loader = DataLoader(Fixed(0), batch_size=8, shuffle=True, num_workers=2)
for batch in loader:
    print(batch.mean(dtype=torch.float))
