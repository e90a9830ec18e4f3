# expect: nothing
import numpy as np
import torch
from torch.utils.data import TensorDataset

X, y = np.random.randn(20, 4), np.random.randint(2, size=20)
np.random.seed(0)
np.random.shuffle(X)
np.random.seed(0)
np.random.shuffle(y)
data = TensorDataset(torch.tensor(X), torch.tensor(y))
