# expect: nothing
import torch
from torch.nn import functional


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(query, key, value)
    return (query @ key.transpose(-2, -1) / query.size(-1) ** 0.5).softmax(dim=-1) @ value


query, key, value = torch.randn(3, 2, 5, 8)
print(attend(query, key, value).shape)
