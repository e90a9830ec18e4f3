# expect: SS110 line 16; watch: nothing
import torch


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())

    def fit(self) -> None:
        for _ in range(5):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 4)).pow(2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)


Trainer().fit()
