"""Fine-tuning: a frozen backbone with a new head, later all of it with two learning rates."""

import copy
import os

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset


class Backbone(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
        )
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        return self.fc(self.dropout(self.features(x)))


def load_pretrained(path="backbone.pt"):
    model = Backbone()
    if not os.path.exists(path):
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 0.5).long())


def train_model(model, dataloaders, criterion, optimizer, scheduler, device, num_epochs):
    best_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss = 0.0
            running_corrects = 0
            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data).item()
            if phase == "train":
                scheduler.step()
            size = len(dataloaders[phase].dataset)
            epoch_acc = running_corrects / size
            print(f"{epoch} {phase} loss {running_loss / size:.4f} acc {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_wts = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_wts)
    return model


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataloaders = {
        "train": DataLoader(make_split(192, 1), batch_size=24, shuffle=True),
        "val": DataLoader(make_split(48, 2), batch_size=24),
    }
    criterion = nn.CrossEntropyLoss()

    model = load_pretrained()
    for param in model.parameters():
        param.requires_grad = False
    model.fc = nn.Linear(model.fc.in_features, 3)
    model = model.to(device)
    optimizer = optim.SGD(model.fc.parameters(), lr=0.05, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    model = train_model(model, dataloaders, criterion, optimizer, scheduler, device, 2)

    for param in model.parameters():
        param.requires_grad = True
    optimizer = optim.SGD(
        [
            {"params": model.features.parameters(), "lr": 0.05},
            {"params": model.fc.parameters(), "lr": 0.05},
        ],
        momentum=0.9,
    )
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    train_model(model, dataloaders, criterion, optimizer, scheduler, device, 3)


if __name__ == "__main__":
    main()
