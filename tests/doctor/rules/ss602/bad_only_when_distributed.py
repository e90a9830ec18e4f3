# expect: SS602 line 11; watch: SS602 line 17
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, world_size=1):
        data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
        many = DistributedSampler(data, num_replicas=2, rank=0) if world_size > 1 else None
        self.loader = DataLoader(data, batch_size=4, sampler=many, shuffle=many is None)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, epochs=3):
        for _ in range(epochs):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()


Trainer(world_size=2).fit()
