# expect: SS414 line 11
import torch


class Backbone(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)

    def train(self, mode=True):
        super().train()
        if mode:
            for module in self.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eval()
        return self


print(Backbone().eval().norm.training)
