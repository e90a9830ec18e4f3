# expect: nothing
import numpy as np
import torch
from torch.utils.data import TensorDataset

X, y = np.random.randn(20, 4), np.random.randint(2, size=20)
data = TensorDataset(torch.tensor(X), torch.tensor(y))
np.random.shuffle(X)
