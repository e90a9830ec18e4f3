# expect: SS103 line 15
import torch
from torch import nn


class Trainer:
    def __init__(self) -> None:
        self.rnn = nn.GRU(3, 5, batch_first=True)
        self.optim = torch.optim.Adam(self.rnn.parameters(), lr=1e-3)

    def run(self, clip: float = 0.25) -> None:
        for _ in range(4):
            self.optim.zero_grad(set_to_none=True)
            output, _ = self.rnn(torch.randn(2, 7, 3))
            nn.utils.clip_grad_norm_(self.rnn.parameters(), clip)
            output.pow(2).mean().backward()
            self.optim.step()


Trainer().run()
