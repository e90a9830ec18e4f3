# expect: SS406 line 21
import copy

import torch


class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        best_score, weights = 0.0, None
        for _ in range(5):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            if (score := 1 / (1 + loss.item())) > best_score:
                best_score = score
                weights = copy.copy(self.model.state_dict())
        self.model.load_state_dict(weights)


Trainer().fit()
