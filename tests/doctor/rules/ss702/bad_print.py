# expect: SS702 line 19; watch: skip, needs a GPU
import torch
from torch import nn


class Learner:
    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = nn.Linear(4, 1).to(self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def fit(self) -> None:
        for step in range(10):
            x = torch.randn(8, 4, device=self.device)
            loss = nn.functional.mse_loss(self.net(x), x[:, :1])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(f"step {step}: {loss:.3f}")


Learner().fit()
