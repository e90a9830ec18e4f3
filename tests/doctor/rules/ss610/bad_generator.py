# expect: SS610 line 14; watch: nothing
import numpy as np
import torch
from torch.utils.data import TensorDataset


class Data:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.X, self.y = np.ones((20, 4)), np.arange(20) % 2

    def load(self):
        x, y = self.rng.permutation(self.X), self.rng.permutation(self.y)
        return TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y))


Data().load()
