"""Name what the validation shows beside the training loss: overfitting, or results too good."""

from __future__ import annotations

import numpy as np

from surestep.doctor.curves.curve import Curve, Values
from surestep.doctor.curves.state import CurveState

_AFTER_BEST = 5  # evaluations
_MOST_RISE = 0.2  # of the best loss: a smaller rise is none
_OF_FALL = 0.05  # of the fall of the validation loss, likewise
_SURE = 3.0  # standard deviations of an evaluation
_SIGMAS = 1.4826 / np.sqrt(6.0)  # from the median second difference to a standard deviation
_TRAIN_FALL = 0.02  # of the training loss
_FEWER_ERRORS = 0.2  # of 1 minus a score: better by less does not make up for a rising loss
_PERFECT = 0.999  # accuracy, and metrics like it
_NO_LOSS = 0.01  # of the training loss at the start
_EARLY = 0.1  # of the run
_BETTER = 0.1  # of the training loss
_TIMES = 3  # evaluations


def name_validation(curve: Curve) -> CurveState | None:
    """Return what the validation shows; None if nothing seems to be wrong."""
    return _find_perfect(curve) or _find_better(curve) or _find_overfitting(curve)


def _find_overfitting(curve: Curve) -> CurveState | None:
    """Find a validation loss that rises from its best while the training loss falls."""
    found = curve.evaluations
    is_known = np.isfinite(found.losses)
    steps, losses = found.steps[is_known], found.losses[is_known]
    if len(losses) <= _AFTER_BEST or not len(curve.bins):
        return None
    best_at = int(np.argmin(losses))
    after = losses[best_at + 1 :]
    if len(after) < _AFTER_BEST:
        return None
    best, end = float(losses[best_at]), float(np.median(after[-3:]))
    noise = float(np.median(np.abs(np.diff(losses, 2)))) * _SIGMAS
    fall = float(losses[: best_at + 1].max()) - best
    rise = end - float(np.median(losses[max(0, best_at - 1) : best_at + 2]))
    is_rising = rise > max(_SURE * noise, _MOST_RISE * abs(best), _OF_FALL * fall)
    if not is_rising or not _trends_up(losses[best_at:]):
        return None
    train_before, train_end = _train_level(curve, steps[best_at]), _train_level(curve, steps[-1])
    if train_before - train_end <= _TRAIN_FALL * abs(train_before):
        return None
    if _score_improves(curve, steps[best_at]):
        return None
    since = int(steps[best_at])
    text = (
        f"The validation loss rose from {_show(best)} at step {since:,} to {_show(end)} in "
        f"{len(after)} evaluations, and the training loss fell from {_show(train_before)} to "
        f"{_show(train_end)}."
    )
    evidence = {
        "best": best,
        "end": end,
        "evaluations": len(after),
        "noise": noise,
        "train_at_best": train_before,
        "train_at_end": train_end,
    }
    return CurveState("overfitting", text, since, evidence)


def _trends_up(values: Values) -> bool:
    """Return whether most pairs of values rise: a test for a trend by Mann and Kendall."""
    count = len(values)
    rises = sum(int(np.sign(values[i + 1 :] - values[i]).sum()) for i in range(count - 1))
    variance = count * (count - 1) * (2 * count + 5) / 18
    return bool(rises > 2.33 * np.sqrt(variance))  # 1% of series without a trend


def _train_level(curve: Curve, step: float) -> float:
    """Return the training loss around a step: of its bin and those beside it."""
    bins = curve.bins
    at = min(int(np.searchsorted(bins.ends, step)), len(bins) - 1)
    return float(np.mean(bins.means[max(0, at - 1) : at + 2]))


def _score_improves(curve: Curve, step: float) -> bool:
    """Return whether a metric such as the accuracy became better after a step, and stayed so."""
    found = curve.evaluations
    for values in found.scores.values():
        is_known = np.isfinite(values)
        scores, steps = values[is_known], found.steps[is_known]
        before, after = scores[steps <= step], scores[steps > step]
        if not len(before) or not len(after):
            continue
        best = float(before.max())
        if np.median(after[-3:]) - best > _FEWER_ERRORS * (1 - best):
            return True
    return False


def _find_perfect(curve: Curve) -> CurveState | None:
    """Find a first evaluation that is near perfect although training has just begun."""
    found, start = curve.evaluations, curve.initial
    if not len(found.steps) or not found.scores or not start > 0:
        return None
    step, loss = int(found.steps[0]), float(found.losses[0])
    scores = {name: float(values[0]) for name, values in found.scores.items()}
    total = max(curve.total_steps or 0, found.steps[-1])
    begin = curve.begin
    is_early = 0 < step - begin <= _EARLY * (total - begin)
    if not (curve.has_start and is_early and min(scores.values()) >= _PERFECT):
        return None
    if not abs(loss) <= _NO_LOSS * start:
        return None
    name, score = min(scores.items(), key=lambda item: item[1])
    text = (
        f"At the first evaluation, at step {step:,} of {int(total):,}, the validation {name} is "
        f"{score:.4g} and the loss {_show(loss)}; training started with {_show(start)}."
    )
    return CurveState("leaking", text, step, {"score": score, "loss": loss, "start": start})


def _find_better(curve: Curve) -> CurveState | None:
    """Find a validation loss far below the training loss, if nothing is known to explain it."""
    found = curve.evaluations
    if curve.is_regularized is not False or not len(curve.bins) or not len(found.steps):
        return None
    inside = np.isfinite(found.losses) & (found.steps >= curve.bins.ends[0])
    steps, losses = found.steps[inside], found.losses[inside]
    train = np.array([_train_level(curve, step) for step in steps])
    if len(losses) < _TIMES or not (np.abs(losses) < _BETTER * train).all():
        return None
    text = (
        f"The validation loss is {_show(losses[-1])} and the training loss {_show(train[-1])}, "
        "without dropout, label smoothing or mixup."
    )
    evidence = {"validation": float(losses[-1]), "training": float(train[-1])}
    return CurveState("leaking", text, int(steps[0]), evidence)


def _show(value: float) -> str:
    return f"{value:.3g}"
