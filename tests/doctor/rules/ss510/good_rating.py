# expect: nothing
import torch
from torch import nn


class Rating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 + 4 * torch.sigmoid(self.out(x))


model = Rating()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    stars = torch.randint(1, 6, (16, 1)).float()
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(16, 4)), stars).backward()
    optimizer.step()
