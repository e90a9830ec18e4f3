"""Checkpoints of everything, and a resume from them."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(path, epoch, model, optimizer, scheduler, scaler):
    state = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def load_checkpoint(path, model, optimizer, scheduler, scaler):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    scaler.load_state_dict(checkpoint["scaler"])
    torch.set_rng_state(checkpoint["rng"])
    return checkpoint["epoch"] + 1


def fit(epochs):
    torch.manual_seed(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(128, 6)
    loader = DataLoader(
        TensorDataset(x, (x[:, :3].sum(1, keepdim=True) > 0).float()), batch_size=16, shuffle=True
    )
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    loss_fn = nn.BCEWithLogitsLoss()

    start_epoch = 0
    if os.path.exists(CHECKPOINT):
        start_epoch = load_checkpoint(CHECKPOINT, model, optimizer, scheduler, scaler)
    for epoch in range(start_epoch, epochs):
        for features, labels in loader:
            features, labels = features.to(device), labels.to(device)
            optimizer.zero_grad()
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                loss = loss_fn(model(features), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        save_checkpoint(CHECKPOINT, epoch, model, optimizer, scheduler, scaler)
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}")


if __name__ == "__main__":
    fit(2)
    fit(4)  # as a second start of the script would
