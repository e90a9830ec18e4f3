"""Three spiral arms of 2-D points: the smallest problem that a linear model cannot solve."""

import math

import torch
from torch import Tensor, nn

import surestep

config = surestep.Config(
    epochs=60,
    batch_size=64,
    optim=surestep.Optim(name="adamw", lr=3e-3),
    schedule=surestep.Schedule(name="cosine", warmup="5%"),
    validation=surestep.Validation(every="5 epochs", metric="accuracy"),
)
callbacks = [surestep.DecisionRegions()]


def points(samples: int, noise: float) -> tuple[Tensor, Tensor]:
    """Return points (samples, 2) and the arm each is on (samples,)."""
    generator = torch.Generator().manual_seed(0)
    arm = torch.arange(samples) % 3
    radius = torch.rand(samples, generator=generator)
    angle = 4 * radius + arm * (2 * math.pi / 3)
    angle = angle + noise * torch.randn(samples, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


def accuracy(logits: Tensor, arm: Tensor) -> Tensor:
    """Return the share of points whose arm is named correctly."""
    return (logits.argmax(dim=1) == arm).float().mean()


def task(hidden: int = 128, samples: int = 2000, noise: float = 0.15) -> surestep.Task:
    """Classify the arms with a multilayer perceptron.

    Args:
        hidden: width of the two hidden layers.
        samples: points in all: 70% train, 15% val, 15% test.
        noise: spread of the arms, in radians.
    """
    x, y = points(samples, noise)
    model = nn.Sequential(
        *(nn.Linear(2, hidden), nn.ReLU()),
        *(nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Linear(hidden, 3),
    )
    first, second = int(samples * 0.7), int(samples * 0.85)
    return surestep.Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        train=(x[:first], y[:first]),
        val=(x[first:second], y[first:second]),
        test=(x[second:], y[second:]),
        metrics={"accuracy": accuracy},
    )
