"""Curves of several runs at the same steps, so that a page draws, hides and averages them fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surestep.reports.curves import Curve, Steps, Values, summarize_curve

_MOST_EXACT = 1000  # different steps of all curves, up to which each has all of its values
_MOST_VALUES = 180_000  # of all curves of a page
_MOST_RANGES = 1000


def choose_ranges(curves: int) -> int:
    """Return into how many ranges of the steps long curves are split, by their number."""
    return max(50, min(_MOST_RANGES, _MOST_VALUES // (3 * max(1, curves))))


def align(curves: Mapping[int, Curve], ranges: int) -> dict[str, Any]:
    """Return curves at the same steps.

    Args:
        curves: by the number of their run; at least one has values.
        ranges: into which the steps of long curves are split, at most; all have as many steps.

    Returns:
        "steps", and for each curve "run", what `summarize_curve` returns, and "values", NaN if it
        has none at a step. Of short
        curves these are all values. Of long ones they are two for each range, the smallest and the
        largest value: at the start and at the middle of the range. "mean_steps" are the middles of
        the ranges then, and each curve has their "means"; else they are the same as the values.
    """
    about = {number: summarize_curve(curve) for number, curve in curves.items()}
    finite = {number: _keep_finite(curve) for number, curve in curves.items()}
    steps = np.unique(np.concatenate([curve.steps for curve in finite.values()]))
    if len(steps) <= _MOST_EXACT:
        found = [about[at] | _fill(at, curve, steps) for at, curve in finite.items()]
        return {"steps": steps, "mean_steps": steps[:0], "curves": found}
    width = _choose_width(int(steps[-1] + 1 - steps[0]), ranges)
    edges: Steps = np.arange(steps[0], steps[-1] + 1 + width, width)
    middles = edges[:-1] + width // 2
    both = np.stack([edges[:-1], middles], axis=1).ravel()
    found = [about[at] | _summarize(at, curve, edges) for at, curve in finite.items()]
    return {"steps": both, "mean_steps": middles, "curves": found}


def _choose_width(steps: int, ranges: int) -> int:
    """Return how many steps a range has.

    It is 4, 5, 6 or 7 times a power of two, or less than 8. So it rarely changes while runs grow,
    and a live page gets the new ranges only.
    """
    least = -(-steps // ranges)
    unit = 1 << max(0, least.bit_length() - 3)
    return -(-least // unit) * unit


def _keep_finite(curve: Curve) -> Curve:
    finite = np.isfinite(curve.values)
    return Curve(curve.name, curve.steps[finite], curve.values[finite])


def _fill(number: int, curve: Curve, steps: Steps) -> dict[str, Any]:
    values = np.full(len(steps), np.nan)
    values[np.searchsorted(steps, curve.steps)] = curve.values
    return {"run": number, "values": values, "means": values[:0]}


def _summarize(number: int, curve: Curve, edges: Steps) -> dict[str, Any]:
    """Return the extremes and the mean of each range."""
    ranges = len(edges) - 1
    extremes, means = np.full((ranges, 2), np.nan), np.full(ranges, np.nan)
    starts = np.searchsorted(curve.steps, edges)
    has = np.flatnonzero(np.diff(starts))
    if len(has):
        at, sizes = starts[has], np.diff(starts)[has]
        values: Values = curve.values[: starts[-1]]
        means[has] = np.add.reduceat(values, at) / sizes
        lowest, highest = np.minimum.reduceat(values, at), np.maximum.reduceat(values, at)
        rises = values[at] <= values[at + sizes - 1]
        extremes[has, 0] = np.where(rises, lowest, highest)
        extremes[has, 1] = np.where(rises, highest, lowest)
    return {"run": number, "values": extremes.ravel(), "means": means}
