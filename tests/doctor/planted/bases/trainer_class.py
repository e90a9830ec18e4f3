"""A trainer as a class: the step, the epoch and the loop are methods."""

import logging
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

logger = logging.getLogger(__name__)


@dataclass
class Config:
    epochs: int = 3
    batch_size: int = 16
    lr: float = 5e-3
    weight_decay: float = 1e-2
    grad_clip: float = 1.0
    seed: int = 7
    out_dir: str = "out"


class Rings(Dataset):
    def __init__(self, count):
        radius = torch.rand(count) * 2
        angle = torch.rand(count) * 6.28
        self.points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
        self.labels = (radius > 1).long() + (radius > 1.6).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


class Block(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(torch.relu(self.fc(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, width=32, depth=3, classes=3):
        super().__init__()
        self.stem = nn.Linear(2, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Trainer:
    def __init__(self, model, train_set, val_set, config):
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.train_loader = DataLoader(train_set, batch_size=config.batch_size, shuffle=True)
        self.val_loader = DataLoader(val_set, batch_size=config.batch_size)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        self.criterion = nn.CrossEntropyLoss()

    def fit(self):
        for epoch in range(self.config.epochs):
            train_loss = self._train_epoch()
            accuracy = self._evaluate()
            logger.info("epoch %d loss %.3f accuracy %.3f", epoch, train_loss, accuracy)
        os.makedirs(self.config.out_dir, exist_ok=True)
        torch.save(self.model.state_dict(), os.path.join(self.config.out_dir, "model.pt"))

    def _train_step(self, inputs, labels):
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(inputs)
        loss = self.criterion(logits, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self.optimizer.step()
        return loss.detach()

    def _train_epoch(self):
        self.model.train()
        total, count = 0.0, 0
        for inputs, labels in self.train_loader:
            inputs, labels = inputs.to(self.device), labels.to(self.device)
            loss = self._train_step(inputs, labels)
            total += loss * len(labels)
            count += len(labels)
        return float(total / count)

    @torch.no_grad()
    def _evaluate(self):
        self.model.eval()
        hits, count = 0, 0
        for inputs, labels in self.val_loader:
            inputs, labels = inputs.to(self.device), labels.to(self.device)
            hits += (self.model(inputs).argmax(1) == labels).sum().item()
            count += len(labels)
        return hits / count


def run():
    config = Config()
    torch.manual_seed(config.seed)
    train_set, val_set = random_split(Rings(320), [256, 64])
    Trainer(Classifier(), train_set, val_set, config).fit()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    run()
