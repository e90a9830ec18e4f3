# expect: nothing; watch: SS117 line 15
import torch


class Learner:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        x = torch.randn(16, 4)
        loss = (self.model(x) - 1000 * x.mean(1, keepdim=True)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


learner = Learner()
for _ in range(25):
    learner.step()
