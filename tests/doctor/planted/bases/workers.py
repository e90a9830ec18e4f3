"""A dataset that augments with NumPy in several workers, which draw different numbers."""

import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


class Signals(Dataset):
    def __init__(self, n, train):
        rng = np.random.default_rng(5 if train else 6)
        self.labels = rng.integers(0, 2, n)
        base = np.sin(np.linspace(0, 6, 20))[None] * (1 + self.labels[:, None])
        self.signals = (base + 0.2 * rng.standard_normal((n, 20))).astype(np.float32)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        signal = self.signals[index]
        if self.train:
            noise = np.random.normal(0, 0.1, signal.shape).astype(np.float32)
            signal = signal + noise
            if random.random() < 0.5:
                signal = np.roll(signal, 1)
        return torch.from_numpy(signal), int(self.labels[index])


def main():
    seed = 33
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    generator = torch.Generator()
    generator.manual_seed(seed)
    train_loader = DataLoader(
        Signals(160, True),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        worker_init_fn=seed_worker,
        generator=generator,
    )
    test_loader = DataLoader(Signals(40, False), batch_size=40)
    model = nn.Sequential(nn.Linear(20, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.1)
    for epoch in range(3):
        model.train()
        for signals, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(signals), labels)
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            correct = sum((model(s).argmax(1) == y).sum().item() for s, y in test_loader)
        print(f"epoch {epoch}: {correct / 40:.3f}")


if __name__ == "__main__":
    main()
