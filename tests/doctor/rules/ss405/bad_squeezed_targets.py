# expect: nothing; watch: SS405 line 23
import torch
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 8, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(series)
        return self.out(hidden[:, -1])


model = Forecaster()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_fn = nn.SmoothL1Loss()
for _ in range(5):
    windows = torch.randn(16, 11, 1)
    prediction = model(windows[:, :10])
    loss = loss_fn(prediction, windows[:, 10].squeeze())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
