# expect: SS414 line 7
import torch


class Frozen(torch.nn.Linear):
    def train(self, is_training: bool = True):
        super(torch.nn.Linear, self).train()
        self.requires_grad_(False)


print(Frozen(2, 2).eval())
