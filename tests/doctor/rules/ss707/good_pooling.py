# expect: nothing
import torch
from torch import nn


class Pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.score(x).softmax(dim=1)
        return (weights.transpose(1, 2) @ x).squeeze(1)


with torch.inference_mode():
    print(Pooling()(torch.randn(2, 5, 8)).shape)
