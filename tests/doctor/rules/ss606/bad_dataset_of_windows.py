# expect: SS606 line 17; watch: nothing
import torch
from torch.utils.data import Dataset, random_split


class Windows(Dataset):
    def __init__(self, series, length) -> None:
        self.series, self.length = series, length

    def __len__(self):
        return len(self.series) - self.length

    def __getitem__(self, i):
        return self.series[i : i + self.length], self.series[i + self.length]


train_set, val_set = random_split(Windows(torch.randn(100), 10), [0.8, 0.2])
