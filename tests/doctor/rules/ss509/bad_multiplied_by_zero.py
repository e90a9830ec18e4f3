# expect: nothing; watch: SS509 line 23
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.gate = 0.0  # to be raised later

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gate * torch.tanh(self.body(x))).squeeze(1)


model = Gated()
optimizer = torch.optim.AdamW(model.parameters())


def train_step() -> None:
    x = torch.randn(16, 4)
    loss = binary_cross_entropy_with_logits(model(x), (x[:, 0] > 0).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for _ in range(30):
    train_step()
