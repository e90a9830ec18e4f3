# expect: SS208 line 9
from torch import nn
from torch.optim import Adam


class Learner:
    def __init__(self, decay=5e-4):
        self.model = nn.Linear(4, 1)
        self.optimizer = Adam(self.model.parameters(), lr=0.01, weight_decay=decay)


print(Learner().optimizer)
