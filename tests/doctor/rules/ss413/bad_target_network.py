# expect: SS413 line 23
import torch
from torch import nn


class Agent:
    def __init__(self) -> None:
        net = nn.Linear(4, 2)
        self.policy = net
        self.target = net
        self.optimizer = torch.optim.Adam(self.policy.parameters())

    def train(self, steps: int) -> None:
        for step in range(steps):
            x, reward = torch.randn(8, 4), torch.randn(8)
            with torch.no_grad():
                goal = reward + 0.9 * self.target(x + 1).amax(1)
            loss = nn.functional.mse_loss(self.policy(x).amax(1), goal)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 4 == 0:
                self.target.load_state_dict(self.policy.state_dict())


Agent().train(8)
