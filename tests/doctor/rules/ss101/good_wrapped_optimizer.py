# expect: nothing
import torch


class Warmup:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


model = torch.nn.Linear(4, 1)
warmup = Warmup(torch.optim.Adam(model.parameters()))
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(10):
    warmup.zero_grad()
    scaler.scale(model(torch.randn(8, 4)).pow(2).mean()).backward()
    scaler.step(warmup.optimizer)
    scaler.update()
