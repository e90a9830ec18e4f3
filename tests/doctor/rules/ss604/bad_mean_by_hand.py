# expect: SS604 line 6
import torch
from torch.utils.data import TensorDataset, random_split

X = torch.randn(40, 3)
X = (X - X.mean(dim=0)) / X.std(dim=0)
train_set, val_set = random_split(TensorDataset(X), [30, 10])
