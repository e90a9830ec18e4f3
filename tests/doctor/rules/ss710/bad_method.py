# expect: SS710 line 14
import torch
from torch import nn


class Sampler:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def sample(self, length: int) -> torch.Tensor:
        tokens = torch.zeros(1, 1, dtype=torch.long)
        with torch.no_grad():
            while tokens.size(1) < length:
                output = self.model(tokens)
                best = output[:, -1].argmax(-1, keepdim=True)
                tokens = torch.cat([tokens, best], 1)
        return tokens


print(Sampler(nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)).eval()).sample(6))
