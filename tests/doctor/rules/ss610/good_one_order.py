# expect: nothing
import torch
from torch.utils.data import TensorDataset

inputs, labels = torch.randn(20, 4), torch.randint(2, (20,))
order = torch.randperm(20)
data = TensorDataset(inputs[order], labels[order])
