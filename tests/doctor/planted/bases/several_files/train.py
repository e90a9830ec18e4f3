import argparse

import torch
from data import build_loaders
from model import build_model
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from engine import evaluate, train_one_epoch


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="small")
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--batch-size", default=24, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--wd", default=1e-4, type=float)
    return parser.parse_args()


def main(args):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_loader, val_loader = build_loaders(args.batch_size)
    model = build_model(args.model, num_classes=3)
    model.to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.wd
    )
    lr_scheduler = CosineAnnealingLR(optimizer, T_max=args.epochs)
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, optimizer, train_loader, device, epoch)
        lr_scheduler.step()
        loss, acc = evaluate(model, criterion, val_loader, device)
        print(f"[{epoch}] val loss {loss:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main(get_args())
