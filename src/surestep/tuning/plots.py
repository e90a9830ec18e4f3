"""The plots of a report: those of `optuna.visualization`, in the style of the page."""

from __future__ import annotations

import json
import math
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from typing import TYPE_CHECKING

import optuna
import plotly.colors
from optuna import visualization
from plotly.io.json import to_json_plotly

from surestep.tuning.table import describe_measured, is_pruned_with_value
from surestep.tuning.view import (
    Objectives,
    escape_html,
    finished_trials,
    make_evaluator,
    make_view,
    quiet,
    weigh_parameters,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from surestep.tuning.rows import TrialRow
    from surestep.tuning.space import Space

# From the first to the last trial, or the worst to the best: readable on white and on black.
SCALE = ["#7cc7f2", "#3b82f6", "#8b5cf6", "#d946ef"]
WIDE = 20  # times the smallest value: from then on, an axis is logarithmic
MANY = 100  # lines, from which on they are thinner
ACCENT, MUTED, BEST = "#3b82f6", "#94a3b8", "#f97316"
PRUNED = "x"  # symbol of a point
INFEASIBLE = "outside of a constraint"
OUTSIDE = {"color": MUTED, "size": 8, "symbol": "circle-open"}


@dataclass(frozen=True)
class Plot:
    """A plot of the page.

    Args:
        title: what it shows.
        note: how to read it.
        content: plotly's data and layout, as JSON.
        size: "full", "half" or "third" of the width of the page.
        height: in pixels.
    """

    title: str
    note: str
    content: str
    size: str = "full"
    height: int = 340


def draw_plots(
    rows: Sequence[TrialRow], objectives: Objectives, space: Space, best: Collection[int]
) -> list[Plot]:
    """Draw every plot that the trials have values for.

    Args:
        rows: the trials.
        objectives: of the study.
        space: what was searched.
        best: number of the winner, or those of the trials on the Pareto front.
    """
    plots: list[Plot] = []
    is_single = len(objectives) == 1
    pruned = {
        row.number: row.intermediate[max(row.intermediate)]
        for row in rows
        if is_single and is_pruned_with_value(row)
    }
    with quiet():
        every = make_view(rows, objectives, space)
        finished = len(finished_trials(every))
        if finished and len(objectives) in (2, 3):
            plots.append(_draw_pareto_front(every, objectives))
        views = [
            make_view(rows, [objectives[at]], space, at, with_pruned=is_single)
            for at in range(len(objectives))
        ]
        counts = describe_measured(rows)
        if finished:
            for view, (name, _) in zip(views, objectives, strict=True):
                shares = weigh_parameters(view)
                size = "full" if shares is None else "half"
                shown = every if is_single else view  # the best so far is never a pruned trial
                plots.append(_draw_history(shown, name, size, best, pruned))
                if shares is not None:
                    plots.append(_draw_importances(view, name, shares, counts))
        if any(row.intermediate for row in rows):
            plots.append(_draw_intermediate(views[0], rows, objectives[0], best))
        if len(finished_trials(views[0])) > 1:
            if is_single:
                view = make_view(rows, objectives, space, with_pruned=True, dotted=pruned)
                plots.append(_draw_parallel(view, objectives[0]))
            elif sum(row.state == "finished" and row.is_feasible for row in rows) > 1:
                plots.append(_draw_parallel_front(rows, objectives, space))
            for view, (name, _) in zip(views, objectives, strict=True):
                plots += _draw_slices(view, name, pruned)
    return plots


def _draw_history(
    view: optuna.Study, name: str, size: str, best: Collection[int], pruned: Mapping[int, float]
) -> Plot:
    drawn = visualization.plot_optimization_history(view, target_name=escape_html(name))
    values, so_far, infeasible = drawn.data
    colors = [BEST if number in best else ACCENT for number in values.x]
    values.update(marker={"color": colors, "size": 8}, hovertemplate=_hover("Trial %{x}", name))
    so_far.update(
        name="best so far",
        line={"color": BEST, "width": 2, "shape": "hv"},
        hovertemplate=_hover("Best up to trial %{x}", name),
    )
    so_far.y = [value if math.isfinite(value) else None for value in so_far.y]
    infeasible.update(
        name=INFEASIBLE,
        marker=OUTSIDE,
        hovertemplate=_hover(f"Trial %{{x}}, {INFEASIBLE}", name),
        showlegend=True,
    )
    drawn.data = [values, so_far, *([infeasible] if infeasible.x else [])]
    if pruned:
        drawn.add_scatter(
            x=list(pruned),
            y=list(pruned.values()),
            name="pruned",
            mode="markers",
            marker={"color": MUTED, "size": 8, "symbol": PRUNED},
            hovertemplate=_hover("Trial %{x}, pruned", name),
        )
    drawn.update_xaxes(title_text="trial")
    _scale_values(drawn, [*(trial.values[0] for trial in finished_trials(view)), *pruned.values()])
    note = "Trials in the order they started, and the best finished one so far."
    if pruned:
        note += " A pruned trial has its last value."
    if infeasible.x:
        note += " The best one satisfies the constraints."
    return _finish(drawn, f"History of {name}", note, size=size)


def _hover(heading: str, name: str) -> str:
    return f"<b>{heading}</b><br>{escape_html(name)}: %{{y:.5g}}<extra></extra>"


def _draw_importances(
    view: optuna.Study, name: str, shares: Mapping[str, float], counts: str
) -> Plot:
    trials = len(finished_trials(view))
    drawn = visualization.plot_param_importances(
        view, evaluator=make_evaluator(trials), target_name=escape_html(name)
    )
    drawn.update_traces(
        marker_color=ACCENT, hovertemplate="<b>%{y}</b><br>importance: %{x:.3f}<extra></extra>"
    )
    largest = max(shares.values())
    drawn.update_xaxes(title_text="importance", range=[0, 1.18 * largest])
    drawn.update_yaxes(title_text=None, automargin=True, ticksuffix="  ")
    note = (
        f"What distinguishes the best of {counts}, by PED-ANOVA. "
        + ("A rough estimate: it needs about 50 trials." if trials < 50 else "")
    ).strip()
    height = max(340, 120 + 30 * len(shares))
    return _finish(drawn, f"Importances for {name}", note, size="half", height=height)


def _draw_intermediate(
    view: optuna.Study,
    rows: Sequence[TrialRow],
    objective: tuple[str, str],
    best: Collection[int],
) -> Plot:
    drawn = visualization.plot_intermediate_values(view)
    states = {row.number: row.state for row in rows}
    styles = {
        "finished": {"color": ACCENT, "width": 1.5},
        "pruned": {"color": MUTED, "width": 1.5},
        "running": {"color": "#10b981", "width": 2, "dash": "dot"},
        "best": {"color": BEST, "width": 3},
    }
    opacity = 0.65 if len(rows) <= MANY else 0.3
    by_group: dict[str, list[go.Scatter]] = {group: [] for group in styles}
    for trace in drawn.data:
        number = int(trace.name.removeprefix("Trial"))
        by_group["best" if number in best else states[number]].append(trace)
    for group, traces in by_group.items():
        for index, trace in enumerate(traces):
            heading = trace.name.replace("Trial", "Trial ")
            trace.update(
                name=f"best trial{'s' if len(best) > 1 else ''}" if group == "best" else group,
                legendgroup=group,
                showlegend=index == 0,
                line=styles[group],
                opacity=1.0 if group == "best" else opacity,
                mode="lines+markers" if len(rows) <= MANY or len(trace.x) == 1 else "lines",
                marker={"size": 5},
                hovertemplate=_hover(f"{heading}, evaluation %{{x}}", objective[0]),
            )
    drawn.data = [trace for traces in by_group.values() for trace in traces]
    drawn.update_layout(showlegend=True)
    drawn.update_xaxes(title_text="evaluation")
    drawn.update_yaxes(title_text=escape_html(objective[0]))
    reported = [value for row in rows for value in row.intermediate.values()]
    _scale_values(drawn, [value for value in reported if math.isfinite(value)])
    note = "Each line is a trial. Click an entry of the legend to hide its lines."
    return _finish(drawn, f"{objective[0]} during training", note, height=400)


def _draw_parallel(view: optuna.Study, objective: tuple[str, str]) -> Plot:
    """Draw a line for each trial, with a color by its rank: losses have outliers."""
    name, direction = objective
    values = [trial.values[0] for trial in finished_trials(view)]
    axis = _Axis(values)
    drawn = visualization.plot_parallel_coordinate(
        view,
        target=lambda trial: axis.place(trial.values[0]),
        target_name=escape_html(name),
    )
    lines, colorbar = drawn.data[: len(values)], drawn.data[-1]
    has_dotted = len(drawn.data) > len(values) + 1  # then a legend explains them, as infeasible
    drawn.data = [*lines, colorbar]
    heights = sorted({line.y[0] for line in lines}, reverse=direction == "min")
    for line in lines:
        rank = heights.index(line.y[0]) / max(1, len(heights) - 1)
        color = str(plotly.colors.sample_colorscale(SCALE, [rank])[0])
        line.customdata = [(name, axis.show(line.y[0])), *line.customdata[1:]]
        line.line.update(color=color, width=1.8 if len(lines) <= MANY else 1)
    for tick in drawn.layout.annotations:
        if tick.x == 0:
            tick.text = axis.show(tick.y)
    colorbar.marker.update(colorscale=SCALE, reversescale=False, color=[0, 1], cmin=0, cmax=1)
    colorbar.marker.colorbar = {
        "tickvals": [0, 1],
        "ticktext": ["worst", "best"],
        "thickness": 12,
        "outlinewidth": 0,
    }
    note = "Each line is a trial: its values on every axis. The color is its rank."
    if has_dotted:
        note += f" Dotted are pruned trials, with their last values, and those {INFEASIBLE}."
    return _finish_parallel(drawn, view, [name], note)


class _Axis:
    """The axis of an objective in parallel coordinates, logarithmic if its values are wide."""

    def __init__(self, values: Sequence[float]) -> None:
        self._is_log = _is_wide(values)
        self._low, self._high = self.place(min(values)), self.place(max(values))

    def place(self, value: float) -> float:
        """Return a value as it is drawn."""
        return math.log10(value) if self._is_log else value

    def show(self, height: float) -> str:
        """Return the value at a height, from 0 to 1."""
        value = self._low + height * (self._high - self._low)
        return f"{10**value if self._is_log else value:.4g}"


def _draw_parallel_front(rows: Sequence[TrialRow], objectives: Objectives, space: Space) -> Plot:
    """Draw a line for each finished trial, in color if it is on the Pareto front."""
    names = [name for name, _ in objectives]
    rows = [row for row in rows if row.is_feasible]
    finished = finished_trials(make_view(rows, objectives, space))
    axes = [_Axis(values) for values in zip(*(trial.values for trial in finished), strict=True)]
    placed = [
        replace(row, values=tuple(a.place(v) for a, v in zip(axes, row.values, strict=True)))
        for row in rows
        if row.values is not None and all(map(math.isfinite, row.values))
    ]
    view = make_view(placed, objectives, space)
    view.set_metric_names([escape_html(name) for name in names])
    drawn = visualization.plot_parallel_coordinate(view)
    drawn.data = drawn.data[:-1]  # without the scale of colors
    front = len(view.best_trials)  # they come last
    for tick in drawn.layout.annotations:
        if tick.x < len(axes):
            tick.text = axes[tick.x].show(tick.y)
    for index, line in enumerate(drawn.data):
        shown = [(name, axis.show(y)) for name, axis, y in zip(names, axes, line.y, strict=False)]
        line.customdata = [*shown, *line.customdata[len(axes) :]]
        color = BEST if index >= len(drawn.data) - front else MUTED
        line.line = {"color": color, "width": 1.8 if len(drawn.data) <= MANY else 1}
    note = "Each line is a finished trial that satisfies the constraints, if there are any. Those "
    note += "on the Pareto front are orange."
    return _finish_parallel(drawn, view, names, note)


def _finish_parallel(
    drawn: go.Figure, view: optuna.Study, objectives: Sequence[str], note: str
) -> Plot:
    parameters = sorted({name for trial in finished_trials(view) for name in trial.params})
    labels = [*map(escape_html, objectives), *parameters]  # in full: Optuna shortens them
    for line in drawn.data:
        if line.customdata is not None:
            texts = [text for _, text in line.customdata]
            line.customdata = list(map(list, zip(labels, texts, strict=True)))
            line.hovertemplate = "%{customdata[0]}: <b>%{customdata[1]}</b><extra></extra>"
    drawn.update_layout(plot_bgcolor=None, margin={"l": 56})
    drawn.update_xaxes(ticktext=labels, tickangle=-20 if len(labels) > 6 else 0)
    for tick in drawn.layout.annotations:
        tick.update(font={"size": 11, "color": None})
    return _finish(drawn, "Parallel coordinates", note, height=420)


def _is_wide(values: Sequence[float]) -> bool:
    """Whether values need a logarithmic axis: a few large losses would hide the rest."""
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values)


def _scale_values(drawn: go.Figure, values: Sequence[float]) -> None:
    if _is_wide(values):
        drawn.update_yaxes(type="log", **_log_ticks(values))


def _log_ticks(values: Sequence[float]) -> dict[str, object]:
    """Return ticks at 1, 2, 5, 10, or at powers of 10 over a wide range."""
    decades = math.log10(max(values) / min(values))
    ticks = 1 if decades > 2 else "D2" if decades > 0.7 else None  # D2: 2 and 5 too
    return {"exponentformat": "power", "dtick": ticks}


def _draw_slices(view: optuna.Study, name: str, pruned: Collection[int]) -> list[Plot]:
    plots = []
    for parameter in sorted({name for trial in finished_trials(view) for name in trial.params}):
        drawn = visualization.plot_slice(view, [parameter], target_name=escape_html(name))
        points, *infeasible = drawn.data
        symbols = [PRUNED if number in pruned else "circle" for number in points.marker.color]
        points.marker.update(size=8, colorscale=SCALE, showscale=False, symbol=symbols)
        points.update(
            hovertemplate=f"<b>Trial %{{marker.color}}</b><br>{parameter}: %{{x}}<br>"
            f"{escape_html(name)}: %{{y:.5g}}<extra></extra>"
        )
        for trace in infeasible:
            trace.update(marker=OUTSIDE, hovertemplate=_hover(f"A trial {INFEASIBLE}", name))
        if drawn.layout.xaxis.type == "category":
            for trace in drawn.data:
                trace.x = [_unquote(text) for text in trace.x]
            shown = [_unquote(text) for text in drawn.layout.xaxis.categoryarray]
            drawn.update_xaxes(categoryarray=shown)
        _scale_values(drawn, [value for trace in drawn.data for value in trace.y])
        if drawn.layout.xaxis.type == "log":
            values = [float(value) for trace in drawn.data for value in trace.x]
            drawn.update_xaxes(**_log_ticks(values))
        note = "The later the trial, the more violet."
        if pruned:
            note += " A cross is the last value of a pruned trial."
        if infeasible:
            note += f" A circle is a trial {INFEASIBLE}."
        title = f"{unescape(parameter)} and {name}"
        plots.append(_finish(drawn, title, note, size="third", height=280))
    return plots


def _unquote(text: str) -> str:
    """Return a choice as it was written: Optuna shows the repr."""
    return str(literal_eval(text)) if text[:1] in "'\"" else text


def _draw_pareto_front(view: optuna.Study, objectives: Objectives) -> Plot:
    drawn = visualization.plot_pareto_front(
        view, target_names=[escape_html(n) for n, _ in objectives]
    )
    shown = "".join(
        f"<br>{escape_html(name)}: %{{{axis}:.5g}}"
        for (name, _), axis in zip(objectives, "xyz", strict=False)
    )
    others, front = ("other trials", MUTED, 7, "circle"), ("Pareto front", BEST, 10, "circle")
    outside = (INFEASIBLE, MUTED, 7, "circle-open")
    *dominated, best = drawn.data  # those outside of a constraint, if there are some, come first
    styles = [outside, others][-len(dominated) :]
    for trace, (label, color, size, symbol) in zip(
        [*dominated, best], [*styles, front], strict=True
    ):
        numbers = [_read_number(text) for text in trace.text or ()]
        trace.update(
            name=label,
            customdata=numbers,
            marker={"color": color, "size": size, "symbol": symbol, "showscale": False},
            showlegend=True,
            text=None,
            hovertemplate=f"<b>Trial %{{customdata}}</b>{shown}<extra></extra>",
        )
        if len(objectives) == 3:
            trace.marker.size = size / 2
    trials = finished_trials(view)
    for at, axis in enumerate("xyz"[: len(objectives)]):
        if _is_wide([trial.values[at] for trial in trials]):
            where = drawn.layout.scene if len(objectives) == 3 else drawn.layout
            where[f"{axis}axis"].type = "log"
    if len(objectives) == 3:
        drawn.update_scenes(camera_eye={"x": 1.7, "y": 1.7, "z": 0.9}, camera_center_z=-0.15)
    better = " and ".join(
        f"{'higher' if way == 'max' else 'lower'} {name}" for name, way in objectives
    )
    note = f"No other trial has {better} than a trial on the front."
    if len(dominated) > 1:
        note = f"{note.removesuffix('.')}, of those that satisfy the constraints."
    return _finish(drawn, "Pareto front", note, height=460)


def _read_number(text: str) -> int:
    """Return the number of a trial from the text that Optuna shows for it."""
    return int(json.loads(text.replace("<br>", "\n"))["number"])


def _finish(
    drawn: go.Figure, title: str, note: str, *, size: str = "full", height: int = 340
) -> Plot:
    """Take the plot's own title, template and size away: the page has them."""
    plot = drawn.to_plotly_json()
    for key in ("title", "template", "width", "height"):
        plot["layout"].pop(key, None)
    content = to_json_plotly({"data": plot["data"], "layout": plot["layout"]})
    return Plot(title, note, str(content), size, height)
