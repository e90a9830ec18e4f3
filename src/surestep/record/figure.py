"""A figure of runs, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from surestep.base.text import format_count, one_line
from surestep.record.charts import (
    MOST,
    Chart,
    find_span,
    list_charts,
    list_hidden,
    select_points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

    from surestep.record.history import History

_SIZE = (5.5, 3.2)  # of a chart, in inches
_RANGES = 1000  # of steps: more than a chart has pixels
_FEW = 30  # points, which are marked


class RunFigure(Figure):
    """A figure that notebooks show, and that no `pyplot` keeps open."""

    def _repr_png_(self) -> bytes:
        """Return the figure as a notebook shows it."""
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()


def draw_figure(
    histories: Mapping[str, History], columns: Sequence[str], *, log: bool
) -> RunFigure:
    """Draw the charts of runs.

    Args:
        histories: by the name of the run.
        columns: of the histories; if there are any, each has a chart.
        log: whether the axes of the values are logarithmic.
    """
    charts = list_charts(histories, columns)
    drawn = charts[:MOST]
    across = min(2, len(drawn))
    down = -(-len(drawn) // across)
    figure = RunFigure(figsize=(_SIZE[0] * across, _SIZE[1] * down), layout="constrained")
    places = figure.subplots(down, across, squeeze=False).flat
    span = find_span(histories)
    for axes, chart in zip(places, drawn, strict=False):
        _draw_chart(axes, chart, span, log=log)
    for axes in places[len(drawn) :]:
        axes.remove()
    if left := charts[MOST:]:
        more = f"{format_count(len(left), 'more chart')}: of={left[0].title!r} draws one."
        _show_as_typed(figure.suptitle(more, fontsize="medium"))
    return figure


def _draw_chart(axes: Axes, chart: Chart, span: tuple[int, int], *, log: bool) -> None:
    lines, labels = [], []
    for curve in chart.curves:
        steps, values = select_points(curve, _RANGES, log=log)
        style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(steps) <= _FEW else {}
        lines += axes.plot(steps, values, linewidth=1.2, **style)
        notes = list_hidden(curve, log=log) or ([] if len(steps) else ["no values"])
        labels.append(curve.name + (f" ({', '.join(notes)})" if notes else ""))
    if log:
        axes.set_yscale("log")
    axes.set_xlim(span[0] - 0.5, span[1] + 0.5)
    axes.set_xlabel("step")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    _show_as_typed(axes.set_title(one_line(chart.title), loc="left"))
    # matplotlib leaves out a label that starts with _, so the texts are set afterwards.
    legend = axes.legend(lines, ["label"] * len(lines), fontsize="small")
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(one_line(label))
        _show_as_typed(text)


def _show_as_typed(text: Text) -> None:
    """Show $ and \\ in a name as they are: matplotlib takes them for formulas."""
    text.set_parse_math(False)
    text.set_usetex(False)
