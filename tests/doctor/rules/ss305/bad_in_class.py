# expect: SS305 line 9
import torch


class Trainer:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def train(self, epochs: int) -> None:
        for epoch in range(epochs):
            for _ in range(4):
                self.optimizer.zero_grad()
                self.model(torch.randn(8, 4)).pow(2).mean().backward()
                self.optimizer.step()
            print(epoch, self.scheduler.get_last_lr())


Trainer(torch.nn.Linear(4, 1)).train(3)
