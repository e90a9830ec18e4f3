"""Compare two times a step from rounds of windows, with an interval that holds for all looks.

Each round measures both in turn, so what slows down the machine slows down both. The ratio of a
round is compared on its logarithm. Its trimmed mean leaves out the rounds in which another process
slowed down one of the two windows, and has an interval of Student's t.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev

LEVEL = 0.95  # of all intervals of a tuning together
LOOKS = (6, 12, 24)  # rounds after which a comparison may end
# Of the rounds, at each end. If a tenth of the windows are 3 times as slow, 0.9 of the time is
# found in 79% of the comparisons, and in 14% without trimming; a quarter makes too many false wins.
_TRIMMED = 0.2


@dataclass(frozen=True)
class Interval:
    """A ratio of two times, below 1 if the second is shorter, with its interval.

    Attributes:
        ratio: trimmed geometric mean over the rounds.
        low: lower end.
        high: upper end.
        rounds: how many were measured.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def wins(self) -> bool:
        """Whether all of the interval is below 1."""
        return self.high < 1

    @property
    def width(self) -> float:
        """How far the ends are from the ratio, as a share of it."""
        return math.sqrt(self.high / self.low) - 1


def share_error(comparisons: int) -> float:
    """Return the error that each interval may have so that all hold together with `LEVEL`.

    Args:
        comparisons: how many are made at most; its interval is computed after each of `LOOKS`.

    Source: https://en.wikipedia.org/wiki/Bonferroni_correction
    """
    return (1 - LEVEL) / (comparisons * len(LOOKS))


def compute_interval(ratios: Sequence[float], error: float) -> Interval:
    """Return the trimmed mean of ratios with its interval.

    Args:
        ratios: of the rounds, two or more.
        error: probability that the interval does not have the true ratio.

    Source: Tukey and McLaughlin, Less vulnerable confidence and significance procedures, 1963.
    """
    logs, n = sorted(math.log(ratio) for ratio in ratios), len(ratios)
    cut = int(_TRIMMED * n)
    inner = logs[cut : n - cut]
    center = mean(inner)
    winsorized = [inner[0]] * cut + inner + [inner[-1]] * cut
    deviation = stdev(winsorized) / (len(inner) / n)
    half = find_t(len(inner) - 1, error) * deviation / math.sqrt(n)
    return Interval(math.exp(center), math.exp(center - half), math.exp(center + half), n)


def compare_rounds(
    measure: Callable[[], float], error: float, may_continue: Callable[[], bool]
) -> Interval | None:
    """Measure rounds until the result is clear, or the last look is reached.

    It ends early if the interval is below 1, or if the mean is not: the second of the two is then
    not taken, so this cannot make a false win.

    Args:
        measure: measures a round; returns the ratio of the times.
        error: of each interval; see `share_error`.
        may_continue: whether there is time for another round.

    Returns:
        The interval; None if there was no time for the first look.
    """
    ratios: list[float] = []
    found = None
    while len(ratios) < LOOKS[-1] and may_continue():
        ratios.append(measure())
        if len(ratios) in LOOKS:
            found = compute_interval(ratios, error)
            if found.wins or found.ratio >= 1:
                break
    return found


@cache
def find_t(freedom: int, error: float) -> float:
    """Return the value that Student's t exceeds in size with this probability.

    Args:
        freedom: degrees of freedom, 1 or more.
        error: above 0, below 1.
    """
    low, high = 0.0, 1.0
    while _exceeds(high, freedom) > error:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _exceeds(middle, freedom) > error else (low, middle)
    return high


def _exceeds(value: float, freedom: int) -> float:
    """Return the probability that the size of Student's t is above a value.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(value / math.sqrt(freedom))
    cosine, is_odd = math.cos(angle), freedom % 2
    term = cosine if is_odd else 1.0
    total = 0.0
    for number in range(1 + is_odd, freedom, 2):
        total += term
        term *= cosine**2 * number / (number + 1)
    total *= math.sin(angle)
    return 1 - (2 / math.pi * (angle + total) if is_odd else total)
