# expect: nothing; watch: SS306 line 17
import torch


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=10)
        self.scaler = torch.amp.GradScaler("cpu")

    def step(self, x: torch.Tensor, weight: int) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(x).mean() / weight).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()


trainer = Trainer()
for index in range(20):
    trainer.step(torch.randn(8, 4), index % 2)
