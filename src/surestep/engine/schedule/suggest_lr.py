"""The learning rate that range tests suggest, where short trainings start. See docs/decisions/0065.

A range test trains for some steps while the learning rate rises exponentially. The loss first stays
at its start level, then falls, and rises again where training is unstable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

FEWEST = 10  # steps; a shorter curve has no shape
START, WINDOW = 0.15, 0.07  # shares of the steps: those that measure the start level; a mean
SHARE = 0.9  # of its fall that the loss has made at the rate from which the suggestion is derived
# A test with fewer steps per decade of the rate has had less time to learn at each rate, so the
# loss falls at higher ones: by the factor that doubling the steps and LAG give.
PER_DECADE, LAG = 45.0, 0.85
CONSTANT = 0.5  # of the best peak of a rate that falls to 0 is the best rate that never falls
NOISE = 6.0  # mean deviations, of a smoothed loss; a smaller fall shows nothing
BELOW_RISE = 0.1  # of the rate at which the loss rises is where to start if it never falls

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
        start: where to start short trainings: at `lr`, or below the rate at which the loss rises;
            None if the curves show neither.
        by_seed: the rate that each curve alone suggests, in their order; None where it shows none.
        spread: lowest and highest of these; None if all are None.
        why: how the rate follows from the curves, or why there is none; a sentence.
    """

    lr: float | None
    start: float | None
    by_seed: tuple[float | None, ...]
    spread: tuple[float, float] | None
    why: str


def suggest_lr(curves: Sequence[RangeCurve], *, is_constant: bool = False) -> LrSuggestion:
    """Suggest a peak learning rate from the range tests of several seeds.

    Args:
        curves: one of each seed, with the same rates as far as they go.
        is_constant: the run keeps its peak rate to the end, so the best one is lower.

    Raises:
        ValueError: there is no curve, or the rates and losses do not fit together.

    Example:
        >>> rates = [10 ** (step / 20 - 5) for step in range(100)]
        >>> losses = [1 / (1 + 500 * rate) + (rate / 0.5) ** 4 for rate in rates]
        >>> round(suggest_lr([RangeCurve(rates, losses)]).lr, 3)
        0.032
    """
    _check(curves)
    by_seed = tuple(_find_rate([curve], is_constant)[0] for curve in curves)
    rates = [lr for lr in by_seed if lr is not None]
    spread = (min(rates), max(rates)) if rates else None
    lr, why = _find_rate(curves, is_constant)
    start = _start_below_rise(curves) if lr is None else lr
    if lr is None:
        why = f"the curves show no rate: {why}"
    return LrSuggestion(lr, start, by_seed, spread, why)


def has_fallen(losses: Sequence[float]) -> bool:
    """Return whether the losses of a training end below those of its start by more than noise."""
    if len(losses) < FEWEST or not np.isfinite(losses).all():
        return False
    edge = _start_steps(len(losses))
    start, end = np.asarray(losses[:edge]), np.asarray(losses[-edge:])
    noise = np.mean(np.abs(end - np.median(end))) * np.sqrt(2 / edge)
    return bool(np.mean(start) - np.mean(end) > NOISE * noise)


def _start_below_rise(curves: Sequence[RangeCurve]) -> float | None:
    """Return a share of the rate above which the loss is above its start; None if it never is."""
    rates, losses = _join(curves)
    steps = _count_finite(losses)
    if steps < FEWEST:
        return None
    window, start, error = _measure_start(losses[:steps])
    smooth = _smooth(losses[:steps], window, np.nanmean)
    last = int(np.flatnonzero(smooth <= float(np.mean(start)) + NOISE * error).max(initial=0))
    return BELOW_RISE * float(rates[last]) if last < len(rates) - 1 else None


def _join(curves: Sequence[RangeCurve]) -> tuple[Numbers, Numbers]:
    """Return the rates of the longest curve, and the median of all losses above their start."""
    rates = np.asarray(max((curve.rates for curve in curves), key=len), dtype=np.float64)
    return rates, np.median([_above_start(curve, len(rates)) for curve in curves], axis=0)


def _count_finite(losses: Numbers) -> int:
    """Return how many losses come before the first that is not finite."""
    return len(losses) if np.isfinite(losses).all() else int(np.argmin(np.isfinite(losses)))


def _measure_start(losses: Numbers) -> tuple[int, Numbers, float]:
    """Return the steps of a mean, the losses of the start, and the error of the mean."""
    window, start = max(3, round(WINDOW * len(losses))), losses[: _start_steps(len(losses))]
    return window, start, float(np.mean(np.abs(start)) * np.sqrt(1 / window + 1 / len(start)))


def _find_rate(curves: Sequence[RangeCurve], is_constant: bool) -> tuple[float | None, str]:
    """Return the rate that the median of the curves suggests, or None, and the reason."""
    rates, losses = _join(curves)
    steps = _count_finite(losses)
    if steps < FEWEST:
        return None, f"only {steps} losses are finite, and {FEWEST} are needed"
    losses = losses[:steps]
    window, start, error = _measure_start(losses)
    highest = max(-float(_smooth(losses, window, np.nanmedian).min()), float(start.max()))
    smooth = _smooth(np.minimum(losses, highest), window, np.nanmean)
    fall = -float(smooth.min())
    if fall <= NOISE * error:
        return None, "the loss never falls by more than its noise; test lower rates, or more steps"
    if steps == len(rates) and np.argmin(smooth) > steps - window and losses[-1] < 0:
        return None, "the loss still falls at the highest rate; test higher rates"
    at = int(np.argmax(smooth <= -SHARE * fall))
    per_decade = (steps - 1) / float(np.log10(rates[steps - 1] / rates[0]))
    factor = (per_decade / PER_DECADE) ** LAG * (CONSTANT if is_constant else 1)
    return factor * float(rates[at]), (
        f"{factor:.2g} times the rate at which the loss has made {SHARE:.0%} of its fall, in a "
        f"test of {per_decade:.0f} steps per decade{', for a constant rate' * is_constant}"
    )


def _start_steps(steps: int) -> int:
    return max(5, round(START * steps))


def _above_start(curve: RangeCurve, longest: int) -> Numbers:
    """Return the losses minus the start level; infinite where the test diverged or had ended."""
    losses = np.full(longest, np.inf)
    losses[: len(curve.losses)] = curve.losses
    losses[~np.isfinite(losses)] = np.inf
    start = float(np.median(losses[: _start_steps(len(curve.losses))]))
    above: Numbers = losses - (start if np.isfinite(start) else 0)
    return above


def _smooth(losses: Numbers, window: int, average: Callable[..., Numbers]) -> Numbers:
    """Return averages over a centered window, which is shorter at both ends."""
    padded = np.pad(losses, window // 2, constant_values=np.nan)
    return average(sliding_window_view(padded, window // 2 * 2 + 1), axis=1)


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
