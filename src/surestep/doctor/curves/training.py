"""Name the state of a training loss.

Each function returns the state if the curve clearly has it, and None otherwise. A difference is
compared with its own standard error: losses of single batches differ without a reason.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from surestep.base.text import format_count
from surestep.doctor.curves.curve import Bins, Curve, Level, Values
from surestep.doctor.curves.state import CurveState

_FEWEST_VALUES = 20  # finite losses
_FEWEST_STEPS = 100
_SURE = 3.0  # standard errors of a difference that is more than noise
_FLAT = 0.01  # of the loss: a smaller fall is none
_BOUND = 0.08  # of the loss: flat if even the largest fall within the noise is smaller
_AT_LOG = 0.02  # of log(classes): the distance that still counts as equal
_NOISE_AT_LOG = 0.05  # likewise: with more noise, the level is not known
_RISEN = 0.3  # of the loss at the start: above it, by more than this share
_EXPLODED = 9.0  # likewise, of a loss that has become lower again, but not than at the start
_SPIKE = 5  # values: fewer than half of them are one bad batch, or two
_FAR = 2.0  # likewise, of a loss that may be falling again
_LOST = 0.7  # of the fall: a rise by this share has undone it
_SWING = 0.5  # of the fall, and of the loss
_WHITE = 4.0  # times the swing of bins whose losses are independent
_NORMAL_SWING = 2.56  # standard deviations from the 10th to the 90th percentile
_TURNS = 5
_REST = 0.03  # of the loss: on a plateau, it falls by less
_END = 0.125  # the last part of a run
_NO_RATE = 0.02  # of the largest rate: below it, a loss cannot fall


def name_training(curve: Curve) -> CurveState:
    """Return the state of the training loss."""
    finders = (
        *(find_nonfinite, _find_short, _find_explosion, _find_rise),
        *(_find_stuck, _find_swings, _find_flat, _find_plateau),
    )
    for find in finders:
        if (state := find(curve)) is not None:
            return state
    return _describe_fall(curve)


def find_nonfinite(curve: Curve) -> CurveState | None:
    """Find a loss that ended as NaN or infinite, and did not become finite again."""
    count = len(curve.losses)
    trailing = count if not curve.finite.any() else int(np.argmax(curve.finite[::-1]))
    if curve.failed_at is None and trailing < min(3, count):
        return None
    if not count and curve.failed_at is None:
        return None
    step = curve.failed_at or int(curve.steps[count - trailing])
    finite = curve.losses[curve.finite]
    what = "The loss is" if curve.failed_at is None else "The loss or a gradient was"
    text = f"{what} NaN or infinite at step {step:,}."
    evidence: dict[str, float] = {"step": step}
    if not len(finite):
        return CurveState("nonfinite", text, step, evidence)
    last = float(np.median(finite[-2:]))
    evidence |= {"initial": curve.initial, "last_finite": last}
    text += f" The first loss was {_show(curve.initial)}, and the last finite one {_show(last)}."
    has_risen = last > curve.initial + _FAR * abs(curve.initial)
    return CurveState("diverging" if has_risen else "nonfinite", text, step, evidence)


def is_short(curve: Curve) -> bool:
    """Return whether a curve has too few losses to be named."""
    return int(curve.finite.sum()) < _FEWEST_VALUES or curve.length < _FEWEST_STEPS


def _find_short(curve: Curve) -> CurveState | None:
    if not is_short(curve):
        return None
    values, steps = int(curve.finite.sum()), int(curve.length)
    return CurveState(
        "unclear",
        f"The curve has {format_count(values, 'finite loss', 'finite losses')} of "
        f"{format_count(steps, 'step')}. It is named from "
        f"{_FEWEST_VALUES} losses and {_FEWEST_STEPS} steps on.",
        evidence={"values": values, "steps": steps},
    )


def _highest_start(curve: Curve) -> float:
    return max(curve.start.value, float(curve.bins.smooth[0]))


def _end(curve: Curve) -> Level:
    return curve.bins.level(1 - max(_END, 3 / len(curve.bins)), 1.0)


def _find_explosion(curve: Curve) -> CurveState | None:
    """Find a loss that rose to many times its first value, and never became lower than it.

    The first loss of a single batch may be low by chance. A cross-entropy should start at about
    log(classes); that of another loss is compared with its end, too.
    """
    if not curve.has_start or curve.initial <= 0:
        return None
    steps, losses = curve.steps[curve.finite], curve.losses[curve.finite]
    middle = np.median(sliding_window_view(losses, _SPIKE), axis=1)
    initial, peak, end = curve.initial, float(middle.max()), _end(curve)
    usual = end.value if curve.classes is None else math.log(curve.classes)
    if _is_exploding(losses, (1 + _EXPLODED) * _highest_start(curve)):
        usual = 0.0
    limit = (1 + _EXPLODED) * max(initial, usual)
    if peak <= limit or end.value < (1 - _FLAT) * initial:
        return None
    at = int(np.argmax(middle > limit))
    text = (
        f"The training loss rose from {_show(initial)} at the start to {_show(peak)}, and ends at "
        f"{_show(end.value)}."
    )
    evidence = {"initial": initial, "peak": peak, "end": end.value, "noise": end.error}
    return CurveState("diverging", text, int(steps[at]), evidence)


def _is_exploding(losses: Values, limit: float) -> bool:
    """Return whether all losses of the last quarter are above a limit, and still grow."""
    count = len(losses) // 4
    before, last = losses[-2 * count : -count], losses[-count:]
    if count < _SPIKE or last.min() <= limit:
        return False
    return bool(np.median(last) > _FAR * np.median(before))


def _find_rise(curve: Curve) -> CurveState | None:
    """Find a loss that ends far above its start, or has lost what it had gained.

    A loss that falls in the last part of the run is not diverging, even if it is above its start:
    some losses first rise, such as those that compare with a queue of samples.
    """
    bins, start, end = curve.bins, _highest_start(curve), _end(curve)
    low_at = int(np.argmin(bins.smooth))
    low = min(start, float(bins.means[max(0, low_at - 2) : low_at + 3].mean()))
    unit = max(abs(start), start - low)
    before, last = bins.level(0.6, 0.8), bins.level(0.8, 1.0)
    falls = before.value - last.value > _SURE * math.hypot(before.error, last.error)
    above, enough = end.value - start, 2 * _SURE * end.error
    is_above = above > max(_RISEN * unit, enough) and (not falls or above > _FAR * unit)
    is_lost = (
        start - low > _RISEN * unit
        and min(end.value, last.value) - low > max(_LOST * (start - low), 2 * enough)
        and bins.ends[low_at] < _at_share(bins, 0.75)
        and not falls
        and not _rate_has_risen(curve, bins.ends[low_at])
    )
    if not (is_above or is_lost):
        return None
    since = int(bins.ends[low_at])
    text = (
        f"The training loss rose from {_show(low)} at step {since:,} to {_show(end.value)}; it "
        f"was {_show(start)} at the start."
    )
    return CurveState(
        "diverging",
        text,
        since,
        {"start": start, "lowest": low, "end": end.value, "noise": end.error},
    )


def _at_share(bins: Bins, share: float) -> float:
    """Return the step at a share of the run."""
    return float(bins.ends[0] + share * (bins.ends[-1] - bins.ends[0]))


def _rate_has_risen(curve: Curve, step: float) -> bool:
    """Return whether the learning rate is higher than at a step; also if it is not known."""
    if curve.rates is None:
        return True
    since = curve.rates[np.searchsorted(curve.steps, step) :]
    return bool(since.max(initial=0.0) > 1.01 * since[0])


def _warms_up(curve: Curve) -> bool:
    """Return whether the learning rate was still rising when the curve ends."""
    if curve.rates is None or curve.rates[-1] < curve.rates.max():
        return False
    recent = curve.rates[-max(2, len(curve.rates) // 10) :]
    return bool(recent[-1] > recent[0])


def _find_stuck(curve: Curve) -> CurveState | None:
    """Find a cross-entropy that stays at that of equal probabilities."""
    if curve.classes is None or curve.classes < 2 or _warms_up(curve):
        return None
    expected, bins = math.log(curve.classes), curve.bins
    before, last = bins.level(0.5, 0.75), bins.level(0.75, 1.0)
    error = math.hypot(before.error, last.error)
    is_flat = abs(before.value - last.value) <= max(_SURE * error, _FLAT * expected)
    distance = abs(bins.level(0.5, 1.0).value - expected)
    is_sure = _SURE * error <= _NOISE_AT_LOG * expected
    if not (is_flat and is_sure and distance <= _AT_LOG * expected):
        return None
    near = np.abs(bins.smooth - expected) <= max(2 * _AT_LOG * expected, _SURE * error)
    if (bins.smooth < expected)[~near].any():
        return None  # it was lower before: it has learned something
    first = len(near) - int(np.argmin(near[::-1])) if not near.all() else 0
    since = int(bins.ends[first - 1]) if first else None
    return CurveState(
        "stuck",
        f"The training loss stays at {_show(last.value)} (noise {_show(last.error)}); a model that "
        f"gives each of {curve.classes} classes the same probability has {_show(expected)}.",
        since,
        {
            "loss": last.value,
            "noise": last.error,
            "classes": curve.classes,
            "expected": expected,
        },
    )


def _find_flat(curve: Curve) -> CurveState | None:
    """Find a loss that never fell; it is not clear if a fall may be hidden by the noise."""
    if not curve.has_start:
        return None
    bins = curve.bins
    first = bins.level(0.0, 0.25)
    lowest = min((bins.level(i / 4, (i + 1) / 4) for i in (1, 2, 3)), key=lambda at: at.value)
    noise, size = math.hypot(first.error, lowest.error), abs(first.value)
    fall = first.value - lowest.value
    start, start_noise = curve.start, math.hypot(curve.start.error, lowest.error)
    if start.value - lowest.value > max(_SURE * start_noise, _FLAT * size):
        return None
    if fall > max(_SURE * noise, _FLAT * size) or not size:
        return None
    evidence = {"first": first.value, "lowest": lowest.value, "noise": noise}
    numbers = (
        f"{_show(first.value)} in the first quarter, {_show(lowest.value)} at best after it "
        f"(noise {_show(noise)})"
    )
    if _warms_up(curve):
        text = f"The learning rate is still rising, and the loss has not fallen yet: {numbers}."
        return CurveState("unclear", text, evidence=evidence)
    if max(fall, 0.0) + 2 * noise > _BOUND * size:
        text = f"The losses differ so much that a fall cannot be seen yet: {numbers}."
        return CurveState("unclear", text, evidence=evidence)
    steps = int(curve.length)
    text = f"The training loss did not fall in {steps:,} steps: {numbers}."
    return CurveState("flat", text, evidence={**evidence, "steps": steps})


def _find_swings(curve: Curve) -> CurveState | None:
    """Find a loss that rises and falls again and again, by far more than the batches differ."""
    bins = curve.bins
    begin = len(bins) // 2
    means = bins.means[begin:]
    if len(means) < 3 * _TURNS:
        return None
    at = np.arange(len(means))
    rest = means - np.polyval(np.polyfit(at, means, 1), at)
    swing = float(np.subtract(*np.percentile(rest, [90, 10])))
    level, start = float(np.median(means)), _highest_start(curve)
    fall = max(start - float(bins.smooth.min()), 0.0)
    white = float(np.median(bins.errors[begin:]))
    if swing <= max(_SWING * fall, _SWING * abs(level), _WHITE * _NORMAL_SWING * white):
        return None
    turns = _count_turns(rest, swing / 2)
    if turns < _TURNS:
        return None
    text = (
        f"In the second half of the run, the training loss rises and falls by {_show(swing)} "
        f"around {_show(level)}, {turns} times. Its batches differ by {_show(white)} in the mean."
    )
    evidence = {"swing": swing, "level": level, "turns": turns, "noise": white}
    return CurveState("oscillating", text, int(bins.ends[begin]), evidence)


def _count_turns(values: np.ndarray, least: float) -> int:
    """Count the changes of direction, of at least a size."""
    turns, direction, extreme = 0, 0, float(values[0])
    for value in map(float, values[1:]):
        if direction >= 0 and value <= extreme - least:
            turns, direction, extreme = turns + 1, -1, value
        elif direction <= 0 and value >= extreme + least:
            turns, direction, extreme = turns + 1, 1, value
        elif (direction > 0 and value > extreme) or (direction < 0 and value < extreme):
            extreme = value
    return turns


def _find_plateau(curve: Curve) -> CurveState | None:
    """Find a loss that fell, and has not fallen since, although the learning rate is not zero."""
    bins = curve.bins
    before, last = bins.level(0.6, 0.8), bins.level(0.8, 1.0)
    noise = math.hypot(before.error, last.error)
    size = abs(last.value)
    if before.value - last.value + 2 * noise > _REST * size or _rate_is_over(curve):
        return None
    near = np.abs(bins.smooth - last.value) <= max(_REST * size, 2 * _SURE * last.error)
    first = len(near) - int(np.argmin(near[::-1])) if not near.all() else 0
    since = int(bins.ends[min(first, len(bins) - 1)])
    text = (
        f"The training loss fell from {_show(curve.initial)} to {_show(last.value)}, and has not "
        f"fallen since step {since:,} (noise {_show(noise)})."
    )
    evidence = {"initial": curve.initial, "end": last.value, "noise": noise}
    return CurveState("plateau", text, since, evidence)


def _rate_is_over(curve: Curve) -> bool:
    """Return whether the learning rate is close to zero in the last part of the run."""
    if curve.rates is None:
        return False
    last = curve.rates[-max(1, len(curve.rates) // 4) :]
    return bool(np.median(last) <= _NO_RATE * curve.rates.max())


def _describe_fall(curve: Curve) -> CurveState:
    end = _end(curve)
    text = f"The training loss fell from {_show(curve.initial)} to {_show(end.value)}."
    evidence = {"initial": curve.initial, "end": end.value, "noise": end.error}
    return CurveState("falling", text, evidence=evidence)


def _show(value: float) -> str:
    return f"{value:.3g}"
