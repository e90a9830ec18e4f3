# expect: SS111 line 17; watch: skip, needs a GPU
import torch


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def compute_loss(self, x: torch.Tensor) -> torch.Tensor:
        with torch.amp.autocast("cuda", dtype=torch.half):
            return self.model(x).pow(2).mean()

    def fit(self) -> None:
        for _ in range(5):
            self.optimizer.zero_grad()
            self.compute_loss(torch.randn(8, 4, device="cuda")).backward()
            self.optimizer.step()


Trainer().fit()
