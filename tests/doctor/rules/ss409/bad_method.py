# expect: SS409 line 18; watch: nothing
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, data):
        self.model = model
        sampler = DistributedSampler(data, num_replicas=2, rank=1)
        self.val_loader = DataLoader(data, batch_size=4, sampler=sampler)

    def validate(self):
        total = 0.0
        with torch.no_grad():
            for x, y in self.val_loader:
                total += F.cross_entropy(self.model(x), y).item()
        return total / len(self.val_loader)


data = TensorDataset(torch.randn(16, 4), torch.randint(3, (16,)))
print(Trainer(nn.Linear(4, 3), data).validate())
