"""Mixed precision with a GradScaler, as in the AMP recipe, in float16."""

import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def build_data(count):
    x = torch.randn(count, 16)
    w = torch.randn(16, 3, generator=torch.Generator().manual_seed(5))
    return TensorDataset(x, (x @ w).argmax(1))


def build_model():
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )


def train_epoch(net, loader, opt, scaler, criterion):
    net.train()
    running = torch.zeros((), device=device)
    for inputs, targets in loader:
        inputs = inputs.to(device)
        targets = targets.to(device)
        opt.zero_grad(set_to_none=True)
        with autocast(device_type=device, dtype=torch.float16):
            outputs = net(inputs)
            loss = criterion(outputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=2.0)
        scaler.step(opt)
        scaler.update()
        running += loss.detach()
    return (running / len(loader)).item()


def validate(net, loader):
    net.eval()
    correct = 0
    with torch.no_grad(), autocast(device_type=device, dtype=torch.float16):
        for inputs, targets in loader:
            correct += (net(inputs.to(device)).argmax(1).cpu() == targets).sum().item()
    return correct / len(loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(3)
    train_loader = DataLoader(build_data(320), batch_size=32, shuffle=True, drop_last=True)
    val_loader = DataLoader(build_data(64), batch_size=64)
    net = build_model().to(device)
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scaler = GradScaler(device, init_scale=1024.0)
    for epoch in range(3):
        mean_loss = train_epoch(net, train_loader, opt, scaler, criterion)
        print(f"{epoch}: loss {mean_loss:.3f} accuracy {validate(net, val_loader):.3f}")
