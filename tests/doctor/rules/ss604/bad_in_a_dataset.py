# expect: SS604 line 10
import numpy as np
import torch
from sklearn.preprocessing import RobustScaler
from torch.utils.data import Dataset, random_split


class Table(Dataset):
    def __init__(self, X, y) -> None:
        self.X = torch.tensor(RobustScaler().fit_transform(X))
        self.y = torch.tensor(y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.X[index], self.y[index]


rng = np.random.default_rng(0)
dataset = Table(rng.normal(size=(40, 3)), rng.integers(2, size=40))
train_set, test_set = random_split(dataset, [30, 10])
