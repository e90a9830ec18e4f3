# expect: nothing
import torch
from torch import nn


class Run:
    def __init__(self, model: nn.Module, criterion: nn.Module) -> None:
        self.model, self.criterion = model, criterion
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batches: list[dict[str, torch.Tensor]]) -> None:
        words = 0
        for index, batch in enumerate(batches):
            count = (batch["labels"] != -100).sum()
            words += count
            loss = self.criterion(self.model(batch["x"]), batch["labels"]) * count
            loss.backward()
            if index % 4 == 3:
                for parameter in self.model.parameters():
                    parameter.grad /= words
                self.optimizer.step()
                self.optimizer.zero_grad()
                words = 0


made = [{"x": torch.randn(8, 4), "labels": torch.randint(3, (8,))} for _ in range(12)]
Run(nn.Linear(4, 3), nn.CrossEntropyLoss()).train(made)
