"""Handwritten digits: 1,797 real images of 8 x 8 pixels, from scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import surestep

config = surestep.Config(
    epochs=30,
    batch_size=64,
    optim=surestep.Optim(name="adamw", lr=3e-3, weight_decay=0.05),
    schedule=surestep.Schedule(name="cosine", warmup="10%"),
)


def images() -> tuple[Tensor, Tensor]:
    """Return images (1797, 1, 8, 8) in [0, 1] and digits (1797,), shuffled once for all."""
    found = find_spec("sklearn")  # not imported: that takes a second
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            "The images are in scikit-learn. Install it: pip install scikit-learn."
        )
    table = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    x = torch.tensor(table[:, :-1], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], torch.tensor(table[:, -1], dtype=torch.int64)[order]


def accuracy(logits: Tensor, digit: Tensor) -> Tensor:
    """Return the share of images whose digit is classified correctly."""
    return (logits.argmax(dim=1) == digit).float().mean()


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a convolution with its normalisation and activation."""
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def task(width: int = 32, dropout: float = 0.2) -> surestep.Task:
    """Classify the digits with a small convolutional network.

    Args:
        width: channels of the first convolution; the later ones have twice as many.
        dropout: share of the features dropped before the last layer.
    """
    x, y = images()
    model = nn.Sequential(
        *block(1, width),
        *block(width, 2 * width),
        nn.MaxPool2d(2),
        *block(2 * width, 2 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * width * 2 * 2, 10),
    )
    return surestep.Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        train=(x[:1200], y[:1200]),
        val=(x[1200:1500], y[1200:1500]),
        test=(x[1500:], y[1500:]),
        metrics={"accuracy": accuracy},
    )
