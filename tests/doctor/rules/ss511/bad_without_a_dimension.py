# expect: SS511 line 13
import torch
import torch.nn.functional as F


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return F.softmax(scores) @ x


Attention()(torch.randn(2, 5, 4)).sum().backward()
