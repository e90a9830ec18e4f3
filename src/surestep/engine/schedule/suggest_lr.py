"""The learning rate that range tests suggest. See docs/decisions/0065.

A range test trains for some steps while the learning rate rises exponentially. The loss first stays
at its start level, then falls, and rises again where training is unstable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST = 10  # steps; a shorter curve has no shape
START, WINDOW = 0.15, 0.07  # shares of the steps: those that measure the start level; a mean
SHARE = 0.9  # of the fall that the loss has made at the rate from which the suggestion is derived
DIVIDE_BY = 2.0
NOISE = 5.0  # standard errors of a smoothed loss; a smaller fall shows nothing
AGREEMENT = 30.0  # ratio of the rates that two seeds suggest; if it is larger, they disagree

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class RangeCurve:
    """What the range test of one seed measured.

    Attributes:
        rates: learning rate of each step, rising from above 0.
        losses: loss of each step, before the update with its rate, not smoothed. If it ends in a
            loss that is infinite or NaN, or earlier than other curves, the test diverged there.
    """

    rates: Sequence[float]
    losses: Sequence[float]


@dataclass(frozen=True)
class LrSuggestion:
    """A peak learning rate, or why there is none.

    Attributes:
        lr: the rate; None if the curves show none.
        by_seed: the rate that each curve alone suggests, in their order; None where it shows none.
        spread: lowest and highest of these; None if all are None.
        why: how the rate follows from the curves, or why there is none; a sentence.
    """

    lr: float | None
    by_seed: tuple[float | None, ...]
    spread: tuple[float, float] | None
    why: str


def suggest_lr(curves: Sequence[RangeCurve]) -> LrSuggestion:
    """Suggest a peak learning rate from the range tests of several seeds.

    Args:
        curves: one of each seed, with the same rates as far as they go.

    Raises:
        ValueError: there is no curve, or the rates and losses do not fit together.

    Example:
        >>> rates = [10 ** (step / 20 - 5) for step in range(100)]
        >>> losses = [1 / (1 + 500 * rate) + (rate / 0.5) ** 4 for rate in rates]
        >>> round(suggest_lr([RangeCurve(rates, losses)]).lr, 3)
        0.032
    """
    _check(curves)
    alone = [_find_rate([curve]) for curve in curves]
    by_seed = tuple(lr for lr, _ in alone)
    rates = [lr for lr in by_seed if lr is not None]
    spread = (min(rates), max(rates)) if rates else None
    lr, why = _find_rate(curves)
    if lr is not None and spread is not None and spread[1] > AGREEMENT * spread[0]:
        lr, why = None, f"the seeds disagree: they suggest {spread[0]:.2g} to {spread[1]:.2g}"
    if lr is None:
        why = f"the curves show no rate: {why}"
    return LrSuggestion(lr, by_seed, spread, why)


def _find_rate(curves: Sequence[RangeCurve]) -> tuple[float | None, str]:
    """Return the rate that the median of the curves suggests, or None, and the reason."""
    losses = np.median([_above_start(curve, curves) for curve in curves], axis=0)
    steps = len(losses) if np.isfinite(losses).all() else int(np.argmin(np.isfinite(losses)))
    if steps < FEWEST:
        return None, f"it has only {steps} steps before the loss is not finite; {FEWEST} are needed"
    losses = losses[:steps]
    window, start = max(3, round(WINDOW * steps)), losses[: _start_steps(steps)]
    highest = max(-float(_smooth(losses, window, np.median).min()), float(start.max()))
    smooth = _smooth(np.minimum(losses, highest), window, np.mean)
    fall = -float(smooth.min())
    if fall <= NOISE * float(np.std(start)) * np.sqrt(1 / window + 1 / len(start)):
        return None, "the loss never falls by more than its noise"
    at = int(np.argmax(smooth <= -SHARE * fall))
    longest = max(curves, key=lambda curve: len(curve.rates))
    return float(longest.rates[at]) / DIVIDE_BY, (
        f"1/{DIVIDE_BY:g} of the rate at which the loss has made {SHARE:.0%} of its fall"
    )


def _start_steps(steps: int) -> int:
    return max(5, round(START * steps))


def _above_start(curve: RangeCurve, curves: Sequence[RangeCurve]) -> Numbers:
    """Return the losses minus the start level; infinite where the test diverged or had ended."""
    longest = max(len(other.losses) for other in curves)
    losses = np.full(longest, np.inf)
    losses[: len(curve.losses)] = curve.losses
    losses[~np.isfinite(losses)] = np.inf
    start = float(np.median(losses[: _start_steps(len(curve.losses))]))
    above: Numbers = losses - (start if np.isfinite(start) else 0)
    return above


def _smooth(losses: Numbers, window: int, average: Callable[[Numbers], Any]) -> Numbers:
    """Return averages over a centered window, which is shorter at both ends."""
    half, steps = window // 2, range(len(losses))
    return np.array([average(losses[max(0, at - half) : at + half + 1]) for at in steps])


def _check(curves: Sequence[RangeCurve]) -> None:
    if not curves:
        raise ValueError("suggest_lr() got no curve; pass one of each seed.")
    longest = np.asarray(max((curve.rates for curve in curves), key=len), dtype=np.float64)
    if not (longest > 0).all() or not (np.diff(longest) > 0).all():
        raise ValueError("the rates of a curve do not rise from above 0; pass them in their order.")
    for curve in curves:
        if len(curve.rates) != len(curve.losses):
            raise ValueError(
                f"a curve has {len(curve.rates)} rates and {len(curve.losses)} losses; "
                "pass one loss for each rate."
            )
        if list(curve.rates) != list(longest[: len(curve.rates)]):
            raise ValueError("the curves have different rates; test all seeds at the same rates.")
