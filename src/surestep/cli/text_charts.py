"""The curves of runs as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import plotext

from surestep.base.text import format_count, one_line
from surestep.cli.output import format_number
from surestep.record.down_sample import keep_extremes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from surestep.record.history import History

# Of the 256 colors of terminals, distinguished by the color-blind too.
_COLORS = (33, 208, 35, 170, 44, 220, 196, 245)
_MARKERS = ("braille", "o", "x", "+", "*", "#", "@", "%")  # without colors
_MARGIN = 12  # columns beside the curves
_TICKS = 5
_MOST = 12  # charts


@dataclass(frozen=True)
class Curve:
    """A column of the history of a run.

    Attributes:
        label: its name, with the run if there are several.
        steps: that have a value, (n,).
        values: (n,).
    """

    label: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """Curves with one axis."""

    title: str
    curves: Sequence[Curve]


def draw_charts(
    histories: Mapping[str, History],
    columns: Sequence[str],
    size: tuple[int, int],
    *,
    log: bool,
    colors: bool,
) -> Iterator[str]:
    """Yield the lines of all charts; all have the same axis of steps.

    Args:
        histories: by the name of the run.
        columns: of the histories; if there are any, each has a chart.
        size: the characters of a line, and the lines of the axes.
        log: whether the axis of the values is logarithmic; it has no values up to 0 then.
        colors: whether the terminal shows colors.
    """
    charts = list_charts(histories, columns)
    ends = [
        at for history in histories.values() for at in (*history.steps[:1], *history.steps[-1:])
    ]
    span = int(min(ends)), int(max(ends))
    for chart in charts[:_MOST]:
        yield from draw(chart, span, size, log=log, colors=colors)
        yield ""
    if len(charts) > _MOST:
        left = [chart.title for chart in charts[_MOST:]]
        yield f"{format_count(len(left), 'more chart')}: --of {one_line(left[0])} draws one."


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


def draw(
    chart: Chart, span: tuple[int, int], size: tuple[int, int], *, log: bool, colors: bool
) -> Iterator[str]:
    """Yield the lines of a chart.

    Args:
        chart: what to draw.
        span: the first and the last step of the axis.
        size: see `draw_charts`.
        log: see there.
        colors: see there.
    """
    width, height = size
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(width, height)
    figure.legend(False)
    yield one_line(chart.title)
    shown: list[float] = []
    for number, curve in enumerate(chart.curves):
        color = _COLORS[number % len(_COLORS)]
        symbol = "braille" if colors else _MARKERS[number % len(_MARKERS)]
        is_shown = curve.values > 0 if log else np.isfinite(curve.values)
        steps, values = keep_extremes(
            curve.steps[is_shown], curve.values[is_shown], max(1, 2 * (width - _MARGIN))
        )
        yield _describe(curve, symbol, color if colors else None, log=log)
        if len(steps):
            values = np.log10(values) if log else values
            shown += (float(values.min()), float(values.max()))
            marker = plotext.marker(symbol, pixel=color) if colors else symbol
            drawn = figure.signal(steps.tolist(), values.tolist(), marker=marker)
            figure.draw(drawn.lines() if symbol == "braille" and len(steps) > 1 else drawn)
    if not shown:
        yield "  nothing to draw"
        return
    _set_axes(span, (min(shown), max(shown)), log=log)
    yield from figure.build().string(not colors).rstrip().splitlines()


def _set_axes(steps: tuple[int, int], values: tuple[float, float], *, log: bool) -> None:
    """Set both axes, whose ends are different also for a single step and a constant value.

    Values are the logarithms of those that the axis shows if it is logarithmic.
    """
    x, y = plotext.figure.ruler("x"), plotext.figure.ruler("y")
    at_steps = np.unique(np.linspace(*steps, _TICKS).round().astype(int)).tolist()
    x.lim(steps[0] - 0.5, steps[1] + 0.5)
    x.ticks(at_steps, [f"{step:,}" for step in at_steps])
    low, high = values
    margin = (high - low or abs(low) or 1.0) * 1e-3
    y.lim(low - margin, high + margin)
    at_values = np.unique(np.linspace(low, high, _TICKS)).tolist()
    y.ticks(at_values, [format_number(10**value if log else value) for value in at_values])


def _describe(curve: Curve, symbol: str, color: int | None, *, log: bool) -> str:
    """Return the name of a curve with its last, its smallest and its largest value."""
    steps, values = curve.steps, curve.values
    is_finite = np.isfinite(values)
    mark = "⣀⡠" if symbol == "braille" else symbol
    if color is not None:
        mark = f"\x1b[38;5;{color}m{mark}\x1b[0m"
    parts = []
    at, known = steps[is_finite], values[is_finite]
    if len(known):
        parts = [
            f"{format_number(values[-1])} at step {steps[-1]:,}",
            *(
                f"{what} {format_number(known[index])} at {at[index]:,}"
                for what, index in (("lowest", known.argmin()), ("highest", known.argmax()))
            ),
        ]
    if lost := len(values) - len(known):
        parts.append(f"{format_count(lost, 'value')} not finite")
    if log and (hidden := int(np.count_nonzero(known <= 0))):
        parts.append(f"{format_count(hidden, 'value')} not above 0")
    return f"  {mark} {one_line(curve.label)}: {', '.join(parts) or 'no values'}"
