# expect: nothing; watch: skip, needs a GPU
import torch


class Learner:
    def __init__(self) -> None:
        torch.set_float32_matmul_precision("highest")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = torch.nn.Linear(512, 512).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self) -> None:
        x = torch.randn(4, 512, device=self.device)
        self.optimizer.zero_grad()
        (self.model(x) - x).pow(2).mean().backward()
        self.optimizer.step()


learner = Learner()
for _ in range(12):
    learner.step()
