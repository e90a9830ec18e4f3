# expect: SS404 line 12
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    accuracies = []
    with torch.inference_mode():
        for x, y in loader:
            accuracies.append((model(x).argmax(1) == y).float().mean().item())
    return np.mean(accuracies)


data = TensorDataset(torch.randn(30, 4), torch.randint(3, (30,)))
print(evaluate(torch.nn.Linear(4, 3), DataLoader(data, batch_size=8)))
