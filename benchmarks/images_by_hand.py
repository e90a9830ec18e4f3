"""The recipe `images` as a plain script, and as a workload of loadtune, to compare tuners.

train-doctor fix -- python benchmarks/images_by_hand.py
loadtune tune benchmarks/images_by_hand.py --steps 20
"""

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from surestep.recipes.images import Photos, make_files, resnet

BATCH, MICRO_BATCH = 16, 8


def make_dataset() -> Photos:
    """Return the samples that are trained on."""
    return Photos(make_files(2000, 512) / "train", augments=True)


def make_model() -> nn.Module:
    """Return the network of the recipe."""
    return resnet(16)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the recipe."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, device: str = "cpu"
) -> Tensor:
    """Take a step in micro-batches; return the loss of the last one."""
    inputs, digits = (part.to(device) for part in batch)
    optimizer.zero_grad()
    parts = zip(inputs.split(MICRO_BATCH), digits.split(MICRO_BATCH), strict=True)
    for images, names in parts:
        loss = nn.functional.cross_entropy(model(images), names, reduction="sum") / len(inputs)
        loss.backward()
    optimizer.step()
    return loss.detach()


def get_workload() -> Any:
    """Return what loadtune tunes."""
    workload: Any = import_module("loadtune.workload")  # it is not needed to train
    return workload.Workload("images", make_dataset, make_model, train_step, make_optimizer, BATCH)


def main(epochs: int) -> None:
    """Train as one first writes it."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = make_optimizer(model)
    loader = DataLoader(make_dataset(), batch_size=BATCH, shuffle=True)
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            loss = train_step(model, optimizer, batch)
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
