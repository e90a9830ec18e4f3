# expect: nothing
import torch
from torch.utils.data import TensorDataset, random_split

series, length = torch.randn(100), 10
chunks = torch.stack([series[i : i + length] for i in range(0, 100, length)])
train_set, val_set = random_split(TensorDataset(chunks), [8, 2])
