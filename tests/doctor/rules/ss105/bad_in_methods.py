# expect: SS105 line 14
import torch


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.grad_scaler = torch.amp.GradScaler("cpu")

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.grad_scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()


trainer = Trainer()
for _ in range(3):
    trainer.step(trainer.model(torch.randn(8, 4)).pow(2).mean())
