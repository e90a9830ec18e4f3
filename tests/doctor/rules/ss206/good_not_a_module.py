# expect: nothing
import torch


class Learner:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)


print(Learner().model)
