# expect: nothing
import torch
from torch import nn


class Attention(nn.Module):
    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights = (query @ key.transpose(-2, -1) / query.size(-1) ** 0.5).softmax(dim=-1)
        return weights @ value, weights


query, key, value = torch.randn(3, 2, 5, 8)
with torch.inference_mode():
    out, weights = Attention()(query, key, value)
print(out.shape, weights.shape)
