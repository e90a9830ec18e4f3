# expect: SS214 line 13
import torch


class Learner:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.model.to("cpu", torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-5)

    def step(self, x):
        self.model(x).pow(2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


learner = Learner()
for _ in range(12):
    learner.step(torch.randn(8, 4, dtype=torch.bfloat16))
