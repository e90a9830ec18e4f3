# expect: SS707 line 16
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).triu(1)
        scores = (query @ key.mT) * query.size(-1) ** -0.5
        scores = scores.masked_fill(mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return self.dropout(weights) @ value


query, key, value = torch.randn(3, 2, 5, 8)
with torch.inference_mode():
    print(Attention().eval()(query, key, value).shape)
