# expect: SS706 line 15
import torch
from torch.utils.data import DataLoader, TensorDataset


class Learner:
    def __init__(self) -> None:
        data = TensorDataset(torch.randn(32, 4))
        self.loader = DataLoader(data, 8, shuffle=True, pin_memory=False)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, device: str) -> None:
        for index, (x,) in enumerate(self.loader):
            loss = self.model(x.to(device, non_blocking=True)).pow(2).mean() + 0 * index
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


Learner().fit("cpu")
