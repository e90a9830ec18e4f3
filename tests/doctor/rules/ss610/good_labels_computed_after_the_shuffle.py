# expect: nothing
import numpy as np
import torch
from torch.utils.data import TensorDataset

X = np.random.randn(20, 4)
np.random.shuffle(X)
y = X.sum(1) > 0
data = TensorDataset(torch.tensor(X), torch.tensor(y))
