"""Compare contestants in pairs of the same round, so that changes of the machine cancel."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A median over the rounds and its 95% bootstrap interval."""

    middle: float
    low: float
    high: float


def bootstrap(values: Sequence[float]) -> Interval:
    """Return the median of `values`, one per round, and its bootstrap interval."""
    generator = random.Random(0)
    resamples = (generator.choices(values, k=len(values)) for _ in range(RESAMPLES))
    medians = sorted(map(median, resamples))
    tail = RESAMPLES // 40
    return Interval(median(values), medians[tail], medians[-tail - 1])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Divide ours by theirs in each round."""
    return bootstrap([a / b for a, b in zip(ours, theirs, strict=True)])


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Subtract theirs from ours in each round."""
    return bootstrap([a - b for a, b in zip(ours, theirs, strict=True)])
