"""Learning-rate schedules: pure functions of the optimizer steps taken.

Nothing is stepped and nothing is saved: a skipped step does not move the rate, and a resumed run
is at the right rate because it knows how many steps it took.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Factor = Callable[[int], float]


@dataclass(frozen=True)
class Shape:
    """A schedule with every option decided; lengths are in optimizer steps."""

    name: Literal["constant", "cosine"]
    total: int
    warmup: float
    min_lr_ratio: float
    floor: Literal["scale", "cut"]
    every: float


def factor(shape: Shape) -> Factor:
    """Return the factor on the peak rate, by the number of steps taken before this one.

    Warm-up of W steps is LinearLR(start_factor=1/W, total_iters=W); after it, over T - W steps,
    cosine is CosineAnnealingLR(T_max=T - W, eta_min=min_lr_ratio * lr), and constant is 1.
    With `every` above one step the same curves are walked in stairs of that length.

    Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """
    warmup = shape.warmup / shape.every
    body = shape.total / shape.every - warmup
    curve = _cosine(shape.min_lr_ratio, shape.floor) if shape.name == "cosine" else _one

    def at(steps_taken: int) -> float:
        place = steps_taken if shape.every == 1 else math.floor(steps_taken / shape.every + 1e-9)
        if place < warmup:
            return (1 + (warmup - 1) * place / warmup) / warmup if warmup > 1 else 1.0
        return curve(min((place - warmup) / body, 1.0) if body > 0 else 0.0)

    return at


def _one(_: float) -> float:
    return 1.0


def _cosine(ratio: float, floor: str) -> Callable[[float], float]:
    def scaled(share: float) -> float:
        return ratio + (1 - ratio) * (1 + math.cos(math.pi * share)) / 2

    def cut(share: float) -> float:
        return max(ratio, (1 + math.cos(math.pi * share)) / 2)

    return scaled if floor == "scale" else cut


def rates(shape: Shape, lr: float) -> dict[str, float]:
    """Return the first, the peak and the last rate of the run, for people to read."""
    at = factor(shape)
    every = range(shape.total) if shape.total <= 100_000 else range(0, shape.total, 97)
    return {
        "first": lr * at(0),
        "peak": lr * max(map(at, every)),
        "last": lr * at(shape.total - 1),
    }
