"""The curves of runs as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotext

from surestep.base.text import format_count, one_line
from surestep.cli.output import format_number
from surestep.record.charts import (
    MOST,
    Chart,
    Curve,
    find_span,
    list_charts,
    list_hidden,
    select_points,
)

if TYPE_CHECKING:
    from surestep.record.history import History

# Of the 256 colors of terminals, distinguished by the color-blind too.
_COLORS = (33, 208, 35, 170, 44, 220, 196, 245)
_MARKERS = ("braille", "o", "x", "+", "*", "#", "@", "%")  # without colors
_MARGIN = 12  # columns beside the curves
_TICKS = 5


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
    span = find_span(histories)
    for chart in charts[:MOST]:
        yield from draw(chart, span, size, log=log, colors=colors)
        yield ""
    if len(charts) > MOST:
        left = [chart.title for chart in charts[MOST:]]
        yield f"{format_count(len(left), 'more chart')}: --of {one_line(left[0])} draws one."


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
    width = size[0]
    start_figure(size)
    yield one_line(chart.title)
    shown: list[float] = []
    for number, curve in enumerate(chart.curves):
        steps, values = select_points(curve, max(1, 2 * (width - _MARGIN)), log=log)
        symbol, color = choose_marker(number, colors=colors)
        yield _describe(curve, symbol, color, log=log)
        if len(steps):
            values = np.log10(values) if log else values
            shown += (float(values.min()), float(values.max()))
            draw_points(steps.tolist(), values.tolist(), symbol, color)
    if not shown:
        yield "  nothing to draw"
        return
    _set_axes(span, (min(shown), max(shown)), log=log)
    yield from build_figure(colors=colors)


def start_figure(size: tuple[int, int]) -> None:
    """Begin a new chart; `size` is that of `draw_charts`."""
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(*size)
    figure.legend(False)


def choose_marker(number: int, *, colors: bool) -> tuple[str, int | None]:
    """Return the symbol and the color of a curve by its number; without colors, None."""
    if colors:
        return "braille", _COLORS[number % len(_COLORS)]
    return _MARKERS[number % len(_MARKERS)], None


def draw_points(x: list[float], y: list[float], symbol: str, color: int | None) -> None:
    """Draw a curve; with the symbol "braille", lines join its points."""
    marker = symbol if color is None else plotext.marker(symbol, pixel=color)
    drawn = plotext.figure.signal(x, y, marker=marker)
    plotext.figure.draw(drawn.lines() if symbol == "braille" and len(x) > 1 else drawn)


def paint(mark: str, color: int | None) -> str:
    """Return a mark in a color, for a terminal."""
    return mark if color is None else f"\x1b[38;5;{color}m{mark}\x1b[0m"


def set_values(low: float, high: float, *, log: bool = False) -> None:
    """Set the axis of the values, whose ends differ also for a constant value.

    They are the logarithms of those that the axis shows if it is logarithmic.
    """
    y = plotext.figure.ruler("y")
    margin = (high - low or abs(low) or 1.0) * 1e-3
    y.lim(low - margin, high + margin)
    at = np.unique(np.linspace(low, high, _TICKS)).tolist()
    y.ticks(at, [format_number(10**value if log else value) for value in at])


def build_figure(*, colors: bool) -> list[str]:
    """Return the lines of the chart."""
    text: str = plotext.figure.build().string(not colors)
    return text.rstrip().splitlines()


def _set_axes(steps: tuple[int, int], values: tuple[float, float], *, log: bool) -> None:
    """Set both axes, whose ends are different also for a single step."""
    x = plotext.figure.ruler("x")
    at_steps = np.unique(np.linspace(*steps, _TICKS).round().astype(int)).tolist()
    x.lim(steps[0] - 0.5, steps[1] + 0.5)
    x.ticks(at_steps, [f"{step:,}" for step in at_steps])
    set_values(*values, log=log)


def _describe(curve: Curve, symbol: str, color: int | None, *, log: bool) -> str:
    """Return the name of a curve with its last, its smallest and its largest value."""
    steps, values = curve.steps, curve.values
    is_finite = np.isfinite(values)
    mark = paint("⣀⡠" if symbol == "braille" else symbol, color)
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
    parts += list_hidden(curve, log=log)
    return f"  {mark} {one_line(curve.name)}: {', '.join(parts) or 'no values'}"
