"""Forecasting a series from windows; the last part of the time evaluates."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
np.random.seed(0)

LOOKBACK = 12
HORIZON = 1


class WindowDataset(Dataset):
    def __init__(self, series, lookback=LOOKBACK, horizon=HORIZON):
        self.series = torch.as_tensor(series, dtype=torch.float32)
        self.lookback = lookback
        self.horizon = horizon

    def __len__(self):
        return len(self.series) - self.lookback - self.horizon + 1

    def __getitem__(self, i):
        past = self.series[i : i + self.lookback]
        future = self.series[i + self.lookback : i + self.lookback + self.horizon]
        return past.unsqueeze(-1), future


class Forecaster(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.lstm = nn.LSTM(input_size=1, hidden_size=hidden, num_layers=1, batch_first=True)
        self.fc = nn.Linear(hidden, HORIZON)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1])


values = np.sin(np.arange(320) / 5) + 0.1 * np.random.randn(320)
split = int(0.8 * len(values))
mean, std = values[:split].mean(), values[:split].std()
values = (values - mean) / std
train_data = WindowDataset(values[:split])
valid_data = WindowDataset(values[split:])
train_loader = DataLoader(train_data, batch_size=32, shuffle=True)
valid_loader = DataLoader(valid_data, batch_size=32)

model = Forecaster()
criterion = nn.SmoothL1Loss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
best, best_epoch = float("inf"), -1
for epoch in range(5):
    model.train()
    for past, future in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(past), future)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = torch.cat([(model(p) - f).abs() for p, f in valid_loader])
    mae = errors.mean().item()
    if mae < best:
        best, best_epoch = mae, epoch
        torch.save(model.state_dict(), f"forecaster-{epoch}.pt")
    print(f"epoch {epoch} mae {mae:.4f} best {best:.4f} at {best_epoch}")
