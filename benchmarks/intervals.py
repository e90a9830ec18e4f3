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
    """Give the median of `values`, one per round, and how far chance may move it."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = RESAMPLES // 40
    return Interval(median(values), medians[tail], medians[-tail - 1])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Compare round by round: ours as a multiple of theirs."""
    return bootstrap([a / b for a, b in zip(ours, theirs, strict=True)])


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Compare round by round: ours less theirs."""
    return bootstrap([a - b for a, b in zip(ours, theirs, strict=True)])
