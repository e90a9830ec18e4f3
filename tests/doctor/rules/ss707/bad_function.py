# expect: SS707 line 10
import math

import torch
import torch.nn.functional as F


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    return torch.matmul(F.softmax(scores, dim=-1), value)


query, key, value = torch.randn(3, 2, 5, 8)
print(attend(query, key, value).shape)
