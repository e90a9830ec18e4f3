# expect: SS610 line 8; watch: nothing
import torch
from torch.utils.data import TensorDataset

inputs, labels = torch.randn(20, 4), torch.randint(2, (20,))
inputs = inputs[torch.randperm(20)]
labels = labels[torch.randperm(20)]
data = TensorDataset(inputs, labels)
