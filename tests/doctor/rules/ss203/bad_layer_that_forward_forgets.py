# expect: SS203 line 8; watch: nothing
from torch import nn


class Actor(nn.Module):
    def __init__(self, body, actions):
        super().__init__()
        self.body, self.last = body, nn.Linear(8, actions)

    def forward(self, state):
        return self.body(state).softmax(-1)


class Critic(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.last = body, nn.Linear(8, 1)

    def forward(self, state):
        return self.last(self.body(state))
