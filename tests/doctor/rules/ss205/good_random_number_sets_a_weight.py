# expect: nothing
import torch
from torch import nn


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.offset = torch.tensor([0.5])
        with torch.no_grad():
            self.head.bias.copy_(0.1 * torch.randn(1))

    def forward(self, x):
        return self.head(x + self.offset)


torch.manual_seed(0)
print(Shifted()(torch.randn(3, 4)))
