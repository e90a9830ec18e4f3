# expect: SS906 line 13; ranks: SS906 line 18
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)

    def fit(self) -> None:
        for (x,) in self.loader:
            self.optimizer.zero_grad()
            self.model(x).pow(2).mean().backward()
            self.optimizer.step()


dist.init_process_group("gloo")
Trainer().fit()
