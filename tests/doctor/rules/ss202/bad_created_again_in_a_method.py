# expect: SS202 line 17
import torch


class Learner:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def reset(self):
        self.model = torch.nn.Linear(4, 1)

    def fit(self):
        for _ in range(5):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4)).pow(2).mean().backward()
            self.optimizer.step()


learner = Learner()
learner.reset()
learner.fit()
