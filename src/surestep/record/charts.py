"""The charts of runs: which curves have a chart, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surestep.base.errors import ConfigError, RunError, suggest_names
from surestep.base.text import format_count
from surestep.record.down_sample import keep_extremes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from surestep.record.history import History

MOST = 12  # charts that are drawn


@dataclass(frozen=True)
class Curve:
    """A column of the history of a run.

    Attributes:
        name: of the column, after that of the run if there are several.
        steps: that have a value, (n,).
        values: (n,).
    """

    name: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """Curves with one axis."""

    title: str
    curves: Sequence[Curve]


def select_points(
    curve: Curve, ranges: int, *, log: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the points of a curve that are drawn.

    Args:
        curve: of any length.
        ranges: of steps; each has its smallest and its largest value.
        log: whether the axis of the values is logarithmic; it has no values up to 0 then.

    Returns:
        The steps and the values, all finite.
    """
    is_shown = curve.values > 0 if log else np.isfinite(curve.values)
    return keep_extremes(curve.steps[is_shown], curve.values[is_shown], ranges)


def list_hidden(curve: Curve, *, log: bool) -> list[str]:
    """Return how many values of a curve are not drawn, such as "2 values not finite"."""
    finite = curve.values[np.isfinite(curve.values)]
    counts = {"not finite": len(curve.values) - len(finite)}
    if log:
        counts["not above 0"] = int(np.count_nonzero(finite <= 0))
    return [f"{format_count(count, 'value')} {why}" for why, count in counts.items() if count]


def check_columns(histories: Mapping[str, History], columns: Sequence[str]) -> None:
    """Check that there is something to draw.

    Raises:
        RunError: no run has a step or an evaluation.
        ConfigError: no run has one of the columns.
    """
    if not any(len(history["step"]) for history in histories.values()):
        of = "has" if len(histories) == 1 else "have"
        raise RunError(f"{' and '.join(histories)} {of} no steps and no evaluations yet.")
    known = dict.fromkeys(name for history in histories.values() for name in history)
    known.pop("step")
    for name in columns:
        if name not in known:
            raise ConfigError(f"No run has a column {name!r}. {suggest_names(name, known)}")


def find_span(histories: Mapping[str, History]) -> tuple[int, int]:
    """Return the first and the last step of all runs."""
    ends = [
        at for history in histories.values() for at in (*history.steps[:1], *history.steps[-1:])
    ]
    return int(min(ends)), int(max(ends))


def list_charts(histories: Mapping[str, History], columns: Sequence[str] = ()) -> list[Chart]:
    """Return the charts of runs: losses, each metric and the learning rates, or chosen columns.

    Args:
        histories: by the name of the run.
        columns: of the histories; if there are any, each has a chart.
    """
    by_title: dict[str, list[Curve]] = {}
    for run, history in histories.items():
        for name in columns or history:
            title = name if columns else _title_of(name)
            if title is None or name not in history.columns:
                continue
            rows, values = history.columns[name]
            label = name if len(histories) == 1 else f"{run} {name}"
            curve = Curve(label, history.steps[rows], values)
            by_title.setdefault(title, []).append(curve)
    order = {"loss": 0, "lr": 2}
    return [
        Chart(title, by_title[title]) for title in sorted(by_title, key=lambda t: order.get(t, 1))
    ]


def _title_of(column: str) -> str | None:
    """Return the chart that has a column by default; None if none has it."""
    split, _, name = column.partition("/")
    if column in ("lr", "train/loss") or split == "lr":
        return split if split == "lr" else name
    return name if name and split != "train" else None
