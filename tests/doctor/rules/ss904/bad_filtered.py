# expect: nothing; ranks: SS904 line 18
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset


class Trainer:
    def __init__(self) -> None:
        dist.init_process_group("gloo")
        data = TensorDataset(torch.arange(40.0).view(10, 4))
        mine = [index for index in range(10) if (index % 3 > 0) == dist.get_rank()]
        self.loader = DataLoader(Subset(data, mine), batch_size=1, shuffle=True)
        self.model = DDP(torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def fit(self) -> None:
        for (x,) in self.loader:
            self.optimizer.zero_grad()
            self.model(x).pow(2).mean().backward()
            self.optimizer.step()


Trainer().fit()
