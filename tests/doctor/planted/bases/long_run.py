"""Classification of sensor readings, with an evaluation after each of many epochs."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split


class Readings(Dataset):
    """Five sensors of a machine, and which of three states it is in."""

    def __init__(self, n, noise=1.0):
        generator = torch.Generator().manual_seed(17)
        self.state = torch.randint(0, 3, (n,), generator=generator)
        centers = torch.randn(3, 5, generator=generator)
        self.values = centers[self.state] + noise * torch.randn(n, 5, generator=generator)

    def __len__(self):
        return len(self.state)

    def __getitem__(self, index):
        return self.values[index], self.state[index]


def make_model(width=24):
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 3))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss, correct, count = 0.0, 0, 0
    for values, state in loader:
        logits = model(values)
        loss += F.cross_entropy(logits, state).item() * len(state)
        correct += (logits.argmax(dim=1) == state).sum().item()
        count += len(state)
    return loss / count, correct / count


def train(num_epochs=20, batch_size=32):
    torch.manual_seed(5)
    train_set, val_set = random_split(Readings(376), [256, 120])
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=60)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(num_epochs):
        model.train()
        for values, state in train_loader:
            loss = F.cross_entropy(model(values), state)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        val_loss, accuracy = evaluate(model, val_loader)
        print(f"{epoch}: {loss.item():.3f} {val_loss:.3f} {accuracy:.1%}")


if __name__ == "__main__":
    train()
