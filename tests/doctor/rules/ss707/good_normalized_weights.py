# expect: nothing
import torch


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    weights = (query @ key.transpose(-2, -1) / query.size(-1) ** 0.5).softmax(dim=-1)
    weights = weights / weights.sum(dim=-2, keepdim=True)
    return weights @ value


query, key, value = torch.randn(3, 2, 5, 8)
print(attend(query, key, value).shape)
