"""The HTML page of a report: one file, which makes no network request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from plotly.offline import get_plotlyjs

from surestep.base.text import format_count, format_duration
from surestep.tuning.constraints import parse_constraint
from surestep.tuning.dimension import format_exact, label_choices
from surestep.tuning.page_style import POLICY, SCRIPT, STYLE, TEMPLATES
from surestep.tuning.space import Space
from surestep.tuning.table import EXACT, WALL_TIME, format_value, label_value, list_others

if TYPE_CHECKING:
    from surestep.tuning.dimension import Dimension
    from surestep.tuning.plots import Plot

_SPREAD = ("mean", "standard deviation")  # of several seeds


def render_page(report: Mapping[str, Any], plots: Iterable[Plot]) -> str:
    """Return the page of a report.

    Args:
        report: what `describe_study` returns; the page shows its numbers.
        plots: what is between summary and table.
    """
    title = f"Search of {report['recipe']}"
    space = Space.from_json(report["space"])
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
        f"<header><h1>{escape(title)}</h1>{_render_subtitle(report)}</header>",
        _render_numbers(report),
        f'<div class="grid">{_render_best(report, space)}{_render_space(report, space)}',
        f"{_render_confirmed(report)}</div>",
        f'<div class="grid">{"".join(map(_render_plot, plots))}</div>',
        _render_trials(report, space),
        f'<p class="soft small" style="margin-top:16px">{_render_footer(report)}</p>',
        f"</main><script>{get_plotlyjs()}</script>",
        f"<script>const TEMPLATES = {_script_json(TEMPLATES)};{SCRIPT}</script></body></html>\n",
    ]
    return "\n".join(parts)


def _render_subtitle(report: Mapping[str, Any]) -> str:
    settings = report["settings"]
    goals = " and ".join(
        f"{'highest' if one['direction'] == 'max' else 'lowest'} <b>{escape(one['name'])}</b>"
        for one in report["objectives"]
    )
    if report["where"]:
        goals += f" where <b>{escape(' and '.join(report['where']))}</b>"
    parts = [
        f"Goal: {goals}",
        format_count(settings["trials"], "trial"),
        f"sampler {escape(settings['sampler'])}",
        f"pruner {escape(settings['pruner'])}",
        f"seed {settings['seed']}",
    ]
    if settings["warm_start"] is not None:
        numbers, name = settings["warm_start"]["numbers"], settings["warm_start"]["name"]
        parts.append(f"{format_count(len(numbers), 'trial')} of {escape(name)} known")
    return f'<p class="soft">{" &middot; ".join(parts)}</p>'


def _render_numbers(report: Mapping[str, Any]) -> str:
    counts = report["counts"]
    cards = []
    best = _best_trials(report)
    if len(report["objectives"]) > 1:
        cards.append(_render_number(str(len(best)), "trials on the Pareto front", is_main=True))
    else:
        cards.append(_render_number(*_describe_main(report), is_main=True))
    shown = [
        state for state in counts if counts[state] or state in ("finished", "pruned", "failed")
    ]
    cards += [_render_number(str(counts[state]), state) for state in shown]
    cards.append(_render_number(f"{report['evaluations']:,}", "evaluations"))
    cards.append(_render_number(format_duration(report["seconds"]), f"{WALL_TIME} of the trials"))
    return f'<div class="numbers">{"".join(cards)}</div>'


def _describe_main(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return the value that the page shows first, and its label."""
    name, best = report["objectives"][0]["name"], _best_trials(report)
    if not best:
        return "none yet", f"best {name}"
    trial, again = best[0], _find_confirmed(report)
    if again is not None:
        return format_value(again["mean"]), f"mean {name} of the winner, trial {trial['number']}"
    return format_value(trial["values"][name]), f"best {name}, trial {trial['number']}"


def _find_confirmed(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the entry of the winner among the trials that were trained again."""
    winner = report["winner"] or {"number": None}
    entries = winner.get("confirmed") or ()
    return next((one for one in entries if one["number"] == winner["number"]), None)


def _render_number(number: str, label: str, *, is_main: bool = False) -> str:
    kind = "card main" if is_main else "card"
    return (
        f'<div class="{kind}"><div class="number">{escape(number)}</div>'
        f'<div class="soft small">{escape(label)}</div></div>'
    )


def _render_best(report: Mapping[str, Any], space: Space) -> str:
    best = _best_trials(report)
    names = [one["name"] for one in report["objectives"]]
    if not best:
        text = "No trial is finished"
        text += " and satisfies the constraints." if report["where"] else "."
        body = f'<p class="soft small">{text}</p>'
        return f'<section class="card half"><h2>Best trial</h2>{body}</section>'
    if len(names) > 1:
        columns = ["trial", *names]
        rows = [
            [str(trial["number"]), *(format_value(trial["values"][name]) for name in names)]
            for trial in best
        ]
        heads = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join(f"<tr>{_render_cells(row)}</tr>" for row in rows)
        note = "No other trial is better in one objective without being worse in another."
        return (
            f'<section class="card half"><h2>Pareto front</h2><p class="soft small">{note}</p>'
            f'<table style="margin-top:8px"><tr>{heads}</tr>{body}</table></section>'
        )
    winner = report["winner"]
    trial = best[0]
    pairs = [
        (name, label_value(dimension, trial["params"][name], exact=True))
        for name, dimension in space.active(trial["params"]).items()
    ]
    if trial["run"]:
        pairs.append(("run folder", f"trials/{trial['run']}"))
    for name, value in ((winner or {}).get("test") or {}).items():
        pairs.append((name, f"{format_value(value)} (measured once, at the end)"))
    title = f"{'Best trial' if winner is None else 'Winner: trial'} {trial['number']}"
    note = f'<p class="soft small">{escape(_explain_bias(report))}</p>'
    return f'<section class="card half"><h2>{title}</h2>{note}{_render_pairs(pairs)}</section>'


def _explain_bias(report: Mapping[str, Any]) -> str:
    if report["winner"] is not None and report["winner"]["confirmed"]:
        return "It has the best mean of the trials that were trained again with other seeds."
    finished = sum(
        trial["state"] == "finished" and trial["is_feasible"] and trial["same_as"] is None
        for trial in report["trials"]
    )
    name = report["objectives"][0]["name"]
    if finished == 1 or name in EXACT:
        return ""
    most = min(3, finished)
    return (
        f"The best of {finished} noisy values is probably better than what a new seed gives. "
        f"--confirm {most} trains the best {most} again with other seeds."
    )


def _render_confirmed(report: Mapping[str, Any]) -> str:
    """Return the table of the trials that were trained again, if there are any."""
    confirmed = (report["winner"] or {}).get("confirmed")
    if not confirmed:
        return ""
    name = report["objectives"][0]["name"]
    seeds = len(confirmed[0]["values"])
    columns = ["trial", *(f"seed {n}" for n in range(1, seeds + 1)), *_SPREAD[: 2 * (seeds > 1)]]
    rows = "".join(f"<tr>{_render_cells(_confirmed_cells(trial))}</tr>" for trial in confirmed)
    heads = "".join(f"<th>{column}</th>" for column in columns)
    note = f"{name} of the best trials, trained again with other seeds."
    return (
        f'<section class="card full"><h2>Confirmed</h2><p class="soft small">{escape(note)}</p>'
        f'<table style="margin-top:8px"><tr>{heads}</tr>{rows}</table></section>'
    )


def _confirmed_cells(trial: Mapping[str, Any]) -> list[str]:
    values = [*trial["values"]]
    if len(values) > 1:
        values += [trial["mean"], trial["spread"]]
    return [str(trial["number"]), *("failed" if v is None else format_value(v) for v in values)]


def _render_space(report: Mapping[str, Any], space: Space) -> str:
    pairs = []
    for dimension in space.dimensions:
        choices = " | ".join(label_choices(dimension))
        pairs.append((_name_dimension(dimension), choices or str(dimension.as_json())))
    fixed = report["settings"]["fixed"]
    pairs += [(name, f"{format_exact(value)} in all trials") for name, value in fixed.items()]
    return f'<section class="card half"><h2>What was searched</h2>{_render_pairs(pairs)}</section>'


def _name_dimension(dimension: Dimension) -> str:
    """Return the name of a dimension with its conditions."""
    needs = dimension.describe_conditions()
    return f"{dimension.name}, if {needs}" if needs else dimension.name


def _render_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(text)}</code></td></tr>"
        for name, text in pairs
    )
    return f'<table class="pairs">{rows}</table>'


def _render_cells(cells: Iterable[str]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)


def _render_plot(plot: Plot) -> str:
    return (
        f'<section class="card {plot.size}"><h2>{escape(plot.title)}</h2>'
        f'<p class="soft small">{escape(plot.note)}</p>'
        f'<div class="plot" data-height="{plot.height}"></div>'
        f'<script type="application/json">{_escape_script(plot.content)}</script></section>'
    )


def _render_trials(report: Mapping[str, Any], space: Space) -> str:
    objectives = [one["name"] for one in report["objectives"]]
    others = list_others(objectives, (parse_constraint(text).name for text in report["where"]))
    has_reasons = any(trial["reason"] for trial in report["trials"])
    columns = ["trial", "state", *objectives, *others, "evaluations", WALL_TIME, *space.names]
    columns += ["reason"] * has_reasons
    best = {trial["number"] for trial in _best_trials(report)}
    rows = []
    for trial in report["trials"]:
        values, state, seconds = trial["values"] or {}, trial["state"], trial["seconds"]
        cells = [_render_cell(trial["number"]), _render_cell(state, kind=f"state {state}")]
        cells += [_render_cell(values.get(name)) for name in objectives]
        cells += [_render_cell(trial["measured"].get(name)) for name in others]
        cells.append(_render_cell(trial["evaluations"]))
        cells.append(_render_cell(seconds, None if seconds is None else format_duration(seconds)))
        active = space.active(trial["params"])
        for name in space.names:
            value = trial["params"].get(name)
            text = label_value(active[name], value) if name in active else None
            cells.append(_render_cell(value, text))
        if has_reasons:
            cells.append(_render_cell(trial["reason"], kind="text"))
        mark = ' class="best"' if trial["number"] in best else ""
        rows.append(f"<tr{mark}>{''.join(cells)}</tr>")
    heads = "".join(f"<th>{escape(column)}</th>" for column in columns)
    note = "Click a column to sort by it. The run folder of trial 7 is trials/0007."
    if not rows:
        note = "No trial has started."
    return (
        f'<section class="card"><h2>Trials</h2><p class="soft small">{note}</p>'
        f'<div class="trials"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _render_cell(value: Any, text: str | None = None, *, kind: str = "") -> str:
    """Return a cell with the exact value, for sorting; one for None without a text is empty."""
    if value is None and text is None:
        return '<td data-value=""></td>'
    exact, shown = format_exact(value), text if text is not None else format_value(value)
    attributes = f' class="{kind}"' if kind else ""
    title = f' title="{escape(exact)}"' if isinstance(value, float) and shown != exact else ""
    return f'<td{attributes}{title} data-value="{escape(exact)}">{escape(shown)}</td>'


def _render_footer(report: Mapping[str, Any]) -> str:
    return escape(f"{report['study']}, written by surestep {report['version']}. ") + (
        "This page makes no network requests; report.json has its numbers."
    )


def _best_trials(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the winner; without one, the best trial or those on the Pareto front."""
    winner = report["winner"]
    numbers = report["best"] if winner is None else [winner["number"]]
    return [trial for trial in report["trials"] if trial["number"] in numbers]


def _script_json(value: Any) -> str:
    return _escape_script(json.dumps(value))


def _escape_script(text: str) -> str:
    """Return JSON that cannot end its script element."""
    return text.replace("<", "\\u003c")
