"""Rules with which other libraries suggest a learning rate from the curve of one range test.

Each takes the rates and the losses of the steps, and applies the smoothing, the end and the
selection of points of its library's defaults. It returns None where the library suggests nothing.

Sources: the documentation of `lightning.pytorch.tuner.Tuner.lr_find` (2.6), of fastai's
`Learner.lr_find` (2.8) and of `ignite.handlers.FastaiLRFinder` (0.5.5).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Rule = Callable[[Sequence[float], Sequence[float]], float | None]


def average(losses: Sequence[float], weight: float, *, is_corrected: bool) -> Numbers:
    """Return the exponential moving average of the losses, in which a new one has this weight.

    Corrected, it starts at 0 and is divided by the sum of the weights; otherwise it starts at the
    first loss.
    """
    value, averages = 0.0 if is_corrected else losses[0], []
    for count, loss in enumerate(losses, 1):
        value = (1 - weight) * value + weight * loss
        averages.append(value / (1 - (1 - weight) ** count) if is_corrected else value)
    return np.array(averages)


def end_at(losses: Numbers, times: float) -> Numbers:
    """Return the losses up to the first that exceeds the lowest so far so many times."""
    above = losses > times * np.minimum.accumulate(losses)
    return losses[: int(np.argmax(above)) + 1] if above.any() else losses


def lightning(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate of the steepest descent over the rate (not its logarithm)."""
    smooth = end_at(average(losses, 0.02, is_corrected=True), 4)[10:-1]
    kept = np.isfinite(smooth)
    x, y = np.array(rates)[10 : 10 + len(smooth)][kept], smooth[kept]
    return float(x[np.argmin(np.gradient(y, x))]) if len(y) > 1 else None


def ignite(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate of the steepest descent per step, before the lowest loss."""
    smooth = end_at(average(losses, 0.05, is_corrected=False), 5)
    falling = smooth[: int(np.argmin(smooth)) + 1]
    if len(falling) < 3:
        return None
    return rates[int(np.argmin(falling[2:] - falling[:-2])) + 1]


def fastai(rule: Callable[[Numbers, Numbers], float]) -> Rule:
    """Apply a rule to the points that fastai gives it: without the first tenth and the last 5."""

    def suggest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
        smooth = end_at(average(losses, 0.02, is_corrected=True), 4)
        smooth = smooth[len(rates) // 10 : -5]
        smooth = smooth[: np.argmax(np.isnan(smooth))] if np.isnan(smooth).any() else smooth
        x = np.array(rates)[len(rates) // 10 :][: len(smooth)]
        return rule(x, smooth) if len(smooth) > 16 else None

    return suggest


def valley(rates: Numbers, losses: Numbers) -> float:
    """Return the rate in the middle of the longest descent, whose losses need not be neighbours.

    The descent spans as many points as it has, up to its last one.
    """
    lengths = np.ones(len(losses), dtype=int)
    for at in range(1, len(losses)):
        lengths[at] += max(lengths[:at][losses[:at] > losses[at]], default=0)
    last, third = int(np.argmax(lengths)), lengths.max() / 3
    return float(rates[last - lengths.max() + int(third) + int(third / 2)])


def steep(rates: Numbers, losses: Numbers) -> float:
    """Return the rate of the steepest descent over the logarithm of the rate."""
    return float(rates[np.argmin(np.diff(losses) / np.diff(np.log(rates)))])


def minimum(rates: Numbers, losses: Numbers) -> float:
    """Return a tenth of the rate of the lowest loss."""
    return float(rates[np.argmin(losses)]) / 10


def slide(rates: Numbers, losses: Numbers) -> float:
    """Return the rate 15 steps before the last point whose slope equals that 15 steps before it."""
    slopes, right, left = np.gradient(losses), len(losses) - 1, len(losses) - 16
    rate = float(rates[left])
    while left >= 0 and abs(slopes[right] - slopes[left]) > 0.005:
        rate, right, left = float(rates[left]), right - 1, left - 1
    return rate


RULES: dict[str, Rule] = {
    "Lightning": lightning,
    "Ignite": ignite,
    "fastai valley": fastai(valley),
    "fastai steep": fastai(steep),
    "fastai minimum": fastai(minimum),
    "fastai slide": fastai(slide),
}
