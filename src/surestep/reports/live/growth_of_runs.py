"""What the charts of several runs grow by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_ARRAYS = (("steps", "values"), ("mean_steps", "means"))  # of a chart, and of its curves


def find_growth(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what charts grow by.

    Args:
        before: "runs", the names of the runs; "charts", as `align` returns them; and the "axes".
        now: the same, later.

    Returns:
        "charts" with the new steps, and of each curve that differs what follows its first
        difference; and "axes" with the new last of each run. None if there are other runs or
        curves, or if steps are gone or were inserted.
    """
    if before["runs"] != now["runs"] or len(before["charts"]) != len(now["charts"]):
        return None
    charts = []
    for old, new in zip(before["charts"], now["charts"], strict=True):
        if not _has_grown(old, new):
            return None
        curves = [
            _cut(new_curve, starts)
            for old_curve, new_curve in zip(old["curves"], new["curves"], strict=True)
            if (starts := _find_differences(old_curve, new_curve))
        ]
        if curves:
            tails = {steps: new[steps][len(old[steps]) :] for steps, _ in _ARRAYS}
            charts.append({"title": new["title"], **tails, "curves": curves})
    axes = {}
    for run, (old, new) in enumerate(zip(before["axes"], now["axes"], strict=True)):
        old_end, new_end = (axis["steps"][-1:].tolist() for axis in (old, new))
        if old_end > new_end:
            return None
        if old_end < new_end:
            axes[str(run)] = {name: values[-1:] for name, values in new.items()}
    return {"charts": charts, "axes": axes}


def _has_grown(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a chart has the same curves as before and the same steps, perhaps more."""
    runs = [[curve["run"] for curve in chart["curves"]] for chart in (old, new)]
    return (
        old["title"] == new["title"]
        and runs[0] == runs[1]
        and all(np.array_equal(new[name][: len(old[name])], old[name]) for name, _ in _ARRAYS)
    )


def _find_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, int]:
    """Return from where on the values and the means of a curve differ; {} if none does.

    New steps at which the curve has no value do not count.
    """
    starts, differs = {}, old["count"] != new["count"]
    for _, name in _ARRAYS:
        before = np.full(len(new[name]), np.nan)
        before[: len(old[name])] = old[name]
        is_same = (before == new[name]) | (np.isnan(before) & np.isnan(new[name]))
        starts[name] = int(np.argmin(is_same)) if not is_same.all() else len(new[name])
        differs = differs or not is_same.all()
    return starts if differs else {}


def _cut(curve: Mapping[str, Any], starts: Mapping[str, int]) -> dict[str, Any]:
    """Return a curve from its first difference on."""
    tails = {name: curve[name][start:] for name, start in starts.items()}
    return {**curve, **tails, **{f"{name}_from": start for name, start in starts.items()}}
