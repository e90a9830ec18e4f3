"""ReduceLROnPlateau, early stopping and the best weights."""

import copy

import numpy as np
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience=3, delta=0.0):
        self.patience = patience
        self.delta = delta
        self.counter = 0
        self.best_loss = np.inf
        self.best_state = None
        self.early_stop = False

    def __call__(self, val_loss, model):
        if val_loss < self.best_loss - self.delta:
            self.best_loss = val_loss
            self.best_state = copy.deepcopy(model.state_dict())
            self.counter = 0
        else:
            self.counter += 1
            if self.counter >= self.patience:
                self.early_stop = True


def set_seed(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)


def get_data():
    X = np.random.randn(400, 5).astype(np.float32)
    y = (X @ np.array([1.0, -2.0, 0.5, 0.0, 3.0], dtype=np.float32))[:, None]
    y += 0.1 * np.random.randn(400, 1).astype(np.float32)
    tensors = torch.from_numpy(X), torch.from_numpy(y)
    parts = [slice(0, 240), slice(240, 320), slice(320, 400)]
    return [TensorDataset(*(t[part] for t in tensors)) for part in parts]


def evaluate(model, loader, criterion):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for xb, yb in loader:
            total += criterion(model(xb), yb).item() * len(xb)
    return total / len(loader.dataset)


set_seed(4)
train_set, val_set, test_set = get_data()
train_loader = DataLoader(train_set, batch_size=40, shuffle=True)
val_loader = DataLoader(val_set, batch_size=80)
test_loader = DataLoader(test_set, batch_size=80)

model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.05), nn.Linear(24, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)
stopper = EarlyStopping(patience=4)

train_losses, val_losses = [], []
for epoch in range(8):
    model.train()
    running = 0.0
    for xb, yb in train_loader:
        pred = model(xb)
        loss = criterion(pred, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
    train_losses.append(running / len(train_loader))
    val_loss = evaluate(model, val_loader, criterion)
    val_losses.append(val_loss)
    scheduler.step(val_loss)
    stopper(val_loss, model)
    if stopper.early_stop:
        print("early stopping at epoch", epoch)
        break

model.load_state_dict(stopper.best_state)
print("test loss", evaluate(model, test_loader, criterion))
