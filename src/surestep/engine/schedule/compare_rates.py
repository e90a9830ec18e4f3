"""The learning rate that short trainings at several rates suggest. See docs/decisions/0065.

Each short training has the schedule of the run, compressed to fewer steps. The rates form a row:
each is FACTOR times the one before. What is compared is the loss at the end of the trainings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, stdev

FACTOR = 3.0  # from one rate to the next
FIRST, MOST = 3, 5  # rates that are tried: first, and with those that follow on the better side
# A longer run needs a lower rate: by the factor that this power gives, up to so many times as long.
LONGER, LONGEST = 0.6, 10.0
END = 0.2  # share of the steps whose mean loss is that of the end


@dataclass(frozen=True)
class RateTraining:
    """Short trainings at one rate.

    Attributes:
        lr: the peak rate.
        losses: loss at the end, of each seed; infinite if it diverged.
    """

    lr: float
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean of the seeds."""
        return fmean(self.losses)


def average_end(losses: Sequence[float]) -> float:
    """Return the mean loss of the last steps of a training."""
    return fmean(losses[-max(1, round(END * len(losses))) :])


def next_rate(trainings: Sequence[RateTraining], start: float) -> float | None:
    """Return the rate to try next: around `start`, then beyond the better end; None at the end."""
    if len(trainings) < FIRST:
        return start * (1.0, 1 / FACTOR, FACTOR)[len(trainings)]
    tried, best = _find_best(trainings)
    if math.isinf(tried[best].loss):
        best = 0
    if len(tried) == MOST or 0 < best < len(tried) - 1:
        return None
    return tried[best].lr * (FACTOR if best else 1 / FACTOR)


def suggest_trained(
    trainings: Sequence[RateTraining], steps: int, total: int
) -> tuple[float | None, str]:
    """Return the rate of the lowest loss for a run of `total` steps, or None, and the reason.

    Args:
        trainings: short ones, each of `steps` steps.
        steps: at most `total`.
        total: the steps of the run.
    """
    if not any(math.isfinite(one.loss) for one in trainings):
        return None, f"all {len(trainings)} short trainings diverged; test lower rates"
    factor = max(steps / total, 1 / LONGEST) ** LONGER
    tried, at = _find_best(trainings)
    equal = [one.lr for one in tried if _is_equal(one, tried[at])]
    lr, why, beyond = _find_minimum(tried, at), "the rate with the lowest loss", ""
    if len(equal) == 1 and at in (0, len(tried) - 1):
        side = "higher" if at else "lower"
        beyond = f"; no {side} one was tried, which may be better"
    if len(equal) > 1:
        lr = geometric_mean(equal)
        why = f"the middle of {len(equal)} rates with the lowest losses, equal within their noise,"
    why = f"{why} at the end of {len(trainings)} short trainings of {steps} steps"
    if factor < 1:
        why = f"{factor:.2g} times {why}, for a run of {total}"
    return factor * lr, f"{why}{beyond}"


def find_spread(
    trainings: Sequence[RateTraining], steps: int, total: int
) -> tuple[float, float] | None:
    """Return the lowest and highest rate that single seeds suggest; None if all diverged.

    The arguments are those of `suggest_trained`.
    """
    rates = []
    for seed in range(len(trainings[0].losses)):
        alone = [RateTraining(one.lr, (one.losses[seed],)) for one in trainings]
        lr, _ = suggest_trained(alone, steps, total)
        rates += [] if lr is None else [lr]
    return (min(rates), max(rates)) if rates else None


def _find_minimum(tried: Sequence[RateTraining], at: int) -> float:
    """Return the lowest point of a parabola through the best rate and its two neighbors.

    It is closer to the better neighbor: at most by the square root of FACTOR, for one that is as
    good, or if the other one diverged.
    """
    if not 0 < at < len(tried) - 1:
        return tried[at].lr
    left, right = (tried[at + side].loss - tried[at].loss for side in (-1, 1))
    if math.isinf(left) or math.isinf(right):
        shift = 0.5 * (math.isinf(left) - math.isinf(right))
    else:
        shift = 0.5 * (left - right) / (left + right) if left + right else 0.0
    return tried[at].lr * math.pow(FACTOR, shift)


def _is_equal(one: RateTraining, best: RateTraining) -> bool:
    """Return whether the mean loss is the lowest, within the standard error over the seeds."""
    differences = [loss - lowest for loss, lowest in zip(one.losses, best.losses, strict=True)]
    if len(differences) < 2 or not math.isfinite(one.loss):
        return one is best
    return fmean(differences) <= stdev(differences) / math.sqrt(len(differences))


def _find_best(trainings: Sequence[RateTraining]) -> tuple[list[RateTraining], int]:
    """Return the trainings by rising rate, and which has the lowest loss: of equals, the middle."""
    tried, middle = sorted(trainings, key=lambda one: one.lr), (len(trainings) - 1) / 2
    return tried, min(range(len(tried)), key=lambda at: (tried[at].loss, abs(at - middle)))
