# expect: SS513 line 6, SS513 line 7
import torch


def flatten(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = x.view(x.size(1), x.size(0), -1)
    second = torch.reshape(x, (x.shape[0], x.shape[2], x.shape[1]))
    return first, second


print(flatten(torch.randn(2, 3, 4)))
