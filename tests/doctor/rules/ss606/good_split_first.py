# expect: nothing
import torch
from torch.utils.data import Dataset


class Windows(Dataset):
    def __init__(self, series, length) -> None:
        self.series, self.length = series, length

    def __len__(self):
        return len(self.series) - self.length

    def __getitem__(self, i):
        return self.series[i : i + self.length], self.series[i + self.length]


series = torch.randn(100)
train_set, val_set = Windows(series[:80], 10), Windows(series[80:], 10)
