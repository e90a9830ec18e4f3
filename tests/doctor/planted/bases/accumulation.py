"""Gradient accumulation with a counter; the last window of an epoch may be shorter."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION_STEPS = 4
EPOCHS = 3


def build_dataset(n):
    inputs = torch.randn(n, 10)
    labels = (inputs[:, :5].sum(1) > inputs[:, 5:].sum(1)).long()
    return TensorDataset(inputs, labels)


torch.manual_seed(11)
train_loader = DataLoader(build_dataset(272), batch_size=8, shuffle=True)
valid_loader = DataLoader(build_dataset(40), batch_size=20)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(p=0.2), nn.Linear(32, 2))
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(EPOCHS):
    model.train()
    optimizer.zero_grad()
    for i, (inputs, labels) in enumerate(train_loader):
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss = loss / ACCUMULATION_STEPS
        loss.backward()
        if (i + 1) % ACCUMULATION_STEPS == 0 or (i + 1) == len(train_loader):
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            optimizer.step()
            optimizer.zero_grad()

    model.eval()
    valid_loss = 0.0
    seen = 0
    with torch.no_grad():
        for inputs, labels in valid_loader:
            valid_loss += criterion(model(inputs), labels).item() * labels.size(0)
            seen += labels.size(0)
    print(f"epoch {epoch} valid {valid_loss / seen:.4f}")
