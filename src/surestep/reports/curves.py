"""Curves of a run that a page draws: few points, with every spike, and every step near events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surestep.record import charts
from surestep.record.charts import Curve as Curve
from surestep.record.down_sample import keep_extremes
from surestep.reports.arrays import encode_steps, encode_values

RANGES = 2000  # of a long curve, each with its smallest and its largest value
_AROUND = 100  # steps before and after an event, all of which are kept
_MOST_DETAILS = 60_000  # values near events, of all curves
_MOST_SHOWN = 200  # steps whose values are not finite, from the first to the last
_SPIKES, _SPIKE = 5, 8.0  # ranges whose largest value is so many times farther from their mean

Steps = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Chart(charts.Chart):
    """A chart of a page.

    Attributes:
        unit: of the values: "", "bytes", "share" or "per second".
        limits: values that a line marks, by what they are.
        about: a sentence on what is drawn, if that is not obvious.
        is_noisy: whether the page may smooth the curves.
    """

    unit: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    about: str = ""
    is_noisy: bool = True


def find_spikes(curve: Curve) -> list[int]:
    """Return the steps of the values that are far above those around them, at most 5."""
    finite = np.isfinite(curve.values)
    steps, values = curve.steps[finite], curve.values[finite]
    if len(values) <= 2 * RANGES:
        return []
    starts, means = _average(values, _split(steps, RANGES))
    excess = np.maximum.reduceat(values, starts) - means
    typical = float(np.median(excess))
    ranked = np.argsort(excess)[::-1][:_SPIKES]
    ends = np.append(starts[1:], len(values))
    return [
        int(steps[starts[at] + np.argmax(values[starts[at] : ends[at]])])
        for at in ranked
        if excess[at] > _SPIKE * typical
    ]


def choose_windows(events: Iterable[int], dense: int) -> list[tuple[int, int]]:
    """Return the first and the last steps of which every value is kept, without overlaps.

    Args:
        events: steps of events, the most important first: those after the limit have no window.
        dense: how many curves have a value in each step.
    """
    most = _MOST_DETAILS // (2 * _AROUND * max(1, dense))
    chosen = sorted(list(dict.fromkeys(events))[:most])
    windows: list[tuple[int, int]] = []
    for step in chosen:
        first, last = step - _AROUND, step + _AROUND - 1
        if windows and first <= windows[-1][1] + 1:
            first = windows.pop()[0]
        windows.append((first, last))
    return windows


def thin_chart(chart: Chart, windows: Sequence[tuple[int, int]], ranges: int) -> dict[str, Any]:
    """Return a chart with fewer points; see `_thin`."""
    return {
        "title": chart.title,
        "unit": chart.unit,
        "limits": dict(chart.limits),
        "about": chart.about,
        "is_noisy": chart.is_noisy,
        "curves": [_thin(curve, windows, ranges) for curve in chart.curves],
    }


def _thin(curve: Curve, windows: Sequence[tuple[int, int]], ranges: int) -> dict[str, Any]:
    """Return what a page draws of a curve.

    Args:
        curve: any.
        windows: the steps of which every value is kept.
        ranges: equal ranges of the steps; of each, the smallest and the largest value are kept.

    Returns:
        "steps" and "values", which are finite; "means" of the ranges at "mean_steps", which are
        empty if all values are there; and what `summarize_curve` returns.
    """
    finite = np.isfinite(curve.values)
    steps, values = curve.steps[finite], curve.values[finite]
    kept_steps, kept_values = keep_extremes(steps, values, ranges)
    mean_steps, means = np.array([], dtype=np.int64), np.array([])
    if len(kept_steps) < len(steps):
        starts, means = _average(values, _split(steps, ranges))
        mean_steps = steps[starts]
        near = np.zeros(len(steps), dtype=bool)
        near[np.searchsorted(steps, kept_steps)] = True
        for first, last in windows:
            near[np.searchsorted(steps, first) : np.searchsorted(steps, last, "right")] = True
        kept_steps, kept_values = steps[near], values[near]
    return {
        "name": curve.name,
        "steps": kept_steps,
        "values": kept_values,
        "mean_steps": mean_steps,
        "means": means,
        **summarize_curve(curve),
    }


def summarize_curve(curve: Curve) -> dict[str, Any]:
    """Return "count" of the values, "not_finite", and "lowest", "highest" and "last" with steps."""
    finite = np.isfinite(curve.values)
    steps, values, lost = curve.steps[finite], curve.values[finite], curve.steps[~finite]
    shown = np.linspace(0, len(lost) - 1, min(len(lost), _MOST_SHOWN)).astype(int)
    return {
        "count": len(curve.values),
        "not_finite": {"count": len(lost), "steps": lost[shown].tolist()},
        "lowest": _describe(steps, values, int(values.argmin())) if len(values) else None,
        "highest": _describe(steps, values, int(values.argmax())) if len(values) else None,
        "last": _describe(curve.steps, curve.values, -1) if len(curve.values) else None,
    }


def _describe(steps: Steps, values: Values, at: int) -> dict[str, Any]:
    value = float(values[at])
    return {"step": int(steps[at]), "value": value if np.isfinite(value) else None}


def _split(steps: Steps, ranges: int) -> NDArray[np.int64]:
    """Return where each of so many equal ranges of the steps starts, without empty ones."""
    edges = np.linspace(steps[0], steps[-1] + 1, ranges + 1)[:-1]
    starts: NDArray[np.int64] = np.unique(np.searchsorted(steps, edges))
    return starts


def _average(values: Values, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Values]:
    sizes = np.diff(np.append(starts, len(values)))
    return starts, np.add.reduceat(values, starts) / sizes


_ENCODED: dict[str, Callable[[Any], Any]] = {
    "steps": encode_steps,
    "values": encode_values,
    "mean_steps": encode_steps,
    "means": encode_values,
}


def encode_curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    """Return a curve as the page reads it."""
    return {
        name: _ENCODED[name](value) if name in _ENCODED else value for name, value in curve.items()
    }
