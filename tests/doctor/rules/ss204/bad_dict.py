# expect: SS204 line 10; watch: SS204 line 14
import torch
import torch.nn as nn


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.heads = {"color": nn.Linear(8, 3), "size": nn.Linear(8, 1)}

    def forward(self, x):
        x = self.body(x)
        return {name: head(x) for name, head in self.heads.items()}


print(Heads()(torch.randn(2, 4)))
