# expect: nothing
import torch


class Range:
    def __init__(self, values):
        self.values = values

    def clamp(self, low, high):
        self.values = self.values.clamp(low, high)


kept = Range(torch.randn(3))
kept.clamp(-1, 1)
print(kept.values)
