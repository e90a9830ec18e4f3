# expect: nothing
import numpy as np
import torch

torch.manual_seed(0)
order = np.random.default_rng(0).permutation(20)
noise = np.random.RandomState(1).randn(20)
