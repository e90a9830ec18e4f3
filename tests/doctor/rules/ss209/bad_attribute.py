# expect: SS209 line 10
import torch


class Learner:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))

    def loss(self, x):
        return self.model.forward(x).pow(2).mean()


print(Learner().loss(torch.randn(3, 4)))
