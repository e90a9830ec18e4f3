# expect: SS604 line 9
import numpy as np
import torch
from sklearn.decomposition import PCA
from torch.utils.data import TensorDataset, random_split

rng = np.random.default_rng(0)
data, labels = rng.normal(size=(40, 6)), rng.integers(2, size=40)
reduced = PCA(n_components=2).fit_transform(data)
dataset = TensorDataset(torch.tensor(reduced), torch.tensor(labels))
train_set, val_set = random_split(dataset, [30, 10])
