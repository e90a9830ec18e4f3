"""Curve fitting at the top level of a script, as in a notebook."""

import math

import torch
from torch import nn

torch.manual_seed(0)

n = 200
X = torch.linspace(-math.pi, math.pi, n).unsqueeze(1)
y = torch.sin(X) + 0.05 * torch.randn(n, 1)
perm = torch.randperm(n)
X_train, y_train = X[perm[:160]], y[perm[:160]]
X_val, y_val = X[perm[160:]], y[perm[160:]]

model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
loss_fn = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

batch_size = 40
history = []
for epoch in range(12):
    order = torch.randperm(len(X_train))
    epoch_loss = 0.0
    for start in range(0, len(X_train), batch_size):
        idx = order[start : start + batch_size]
        pred = model(X_train[idx])
        loss = loss_fn(pred, y_train[idx])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        epoch_loss += loss.item() * len(idx)
    with torch.no_grad():
        val_loss = loss_fn(model(X_val), y_val)
    history.append((epoch_loss / len(X_train), val_loss.item()))
    print(epoch, history[-1])
