"""The table of the trials of a study, and which of them are the best."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surestep.base.text import format_duration
from surestep.tuning.dimension import format_exact, label_choices
from surestep.tuning.rows import MEASURED_OPTIONS

if TYPE_CHECKING:
    from surestep.tuning.dimension import Dimension
    from surestep.tuning.rows import TrialRow
    from surestep.tuning.space import Space

EXACT = ("parameters", "peak_memory")  # objectives that do not depend on the seed
IMPORTANCE_TRIALS = 10  # with a value; with fewer, importances are noise
WALL_TIME = "wall time"
_LONGEST_REASON = 400  # characters: a sentence that lists many names, and no more


def find_best(rows: Sequence[TrialRow], objectives: Sequence[tuple[str, str]]) -> list[int]:
    """Return the number of the best finished trial, or of those on the Pareto front.

    Of trials with the same value, the first one is the best. A trial that violates a constraint
    never is, nor is one with a value that is not finite.
    """
    signs = [1 if direction == "min" else -1 for _, direction in objectives]
    costs = {
        row.number: [sign * value for sign, value in zip(signs, row.values, strict=True)]
        for row in rows
        if row.state == "finished"
        and row.values
        and row.is_feasible
        and all(map(math.isfinite, row.values))
    }
    if len(objectives) == 1:
        return [min(costs, key=lambda number: (costs[number], number))] if costs else []
    return [
        number
        for number, cost in costs.items()
        if not any(_dominates(other, cost) for other in costs.values())
    ]


def is_pruned_with_value(row: TrialRow) -> bool:
    """Whether a trial was pruned, and its last evaluation had a finite value."""
    return (
        row.state == "pruned"
        and bool(row.intermediate)
        and math.isfinite(row.intermediate[max(row.intermediate)])
    )


def count_measured(rows: Sequence[TrialRow]) -> dict[str, int]:
    """Return how many trials have a value for the importances, by state."""
    finished = [
        row for row in rows if row.state == "finished" and all(map(math.isfinite, row.values or ()))
    ]
    return {"finished": len(finished), "pruned": sum(map(is_pruned_with_value, rows))}


def _dominates(cost: Sequence[float], other: Sequence[float]) -> bool:
    return cost != other and all(a <= b for a, b in zip(cost, other, strict=True))


def tabulate_trials(
    rows: Sequence[TrialRow],
    objectives: Sequence[tuple[str, str]],
    space: Space,
    starred: Collection[int] | None = None,
    constrained: Sequence[str] = (),
) -> tuple[list[str], list[list[str]]]:
    """Return the columns and cells of the table of trials for a terminal.

    Args:
        rows: the trials, in the order of the table.
        objectives: of the study.
        space: what was searched.
        starred: numbers of the trials that have a star; None is the best ones.
        constrained: names of what the constraints of the study compare.

    Returns:
        The columns, and the cells of each row.
    """
    best = set(find_best(rows, objectives) if starred is None else starred)
    has_reasons = any(row.reason for row in rows)
    names = [name for name, _ in objectives]
    others = list_others(names, constrained, [row.measured for row in rows])
    titles = [title_other(name, space) for name in others]
    columns = ["trial", "state", *names, *titles, "evaluations", WALL_TIME]
    cells = []
    for row in rows:
        values = [*(row.values or [None] * len(names)), *map(row.measured.get, others)]
        line = [f"{row.number}{' *' * (row.number in best)}", row.state]
        line += ["" if value is None else format_value(value) for value in values]
        line += [str(row.evaluations), "" if row.seconds is None else format_duration(row.seconds)]
        active = space.active(row.params)
        for name in space.names:
            line.append(label_value(active[name], row.params[name]) if name in active else "")
        cells.append([*line, shorten_reason(row)] if has_reasons else line)
    return [*columns, *space.names, *["reason"] * has_reasons], cells


def list_others(
    objectives: Sequence[str],
    constrained: Iterable[str],
    measured: Sequence[Mapping[str, float]],
) -> list[str]:
    """Return what is shown beside the objectives, each once.

    It is what constraints compare, and the options that trials measured.
    """
    found = [name for name in MEASURED_OPTIONS if any(name in values for values in measured)]
    return [name for name in dict.fromkeys([*constrained, *found]) if name not in objectives]


def title_other(name: str, space: Space) -> str:
    """Return the title of a value beside the objectives: what is searched has a column too."""
    return f"{name} found" if name in space.names else name


def shorten_reason(row: TrialRow) -> str:
    """Return the first sentence of a reason for a table; the log of the trial has the rest."""
    text = " ".join(row.reason.split())
    first = re.split(r"(?<=[.!?]) ", text, maxsplit=1)[0]
    if len(first) > _LONGEST_REASON:
        first = first[:_LONGEST_REASON].rsplit(" ", 1)[0] + " ..."
    return first if first == text or row.run is None else f"{first} See trials/{row.run}.log"


def label_value(dimension: Dimension, value: Any, *, exact: bool = False) -> str:
    """Return a value of a dimension as tables show it; see `label_choices`."""
    if value in dimension.choices:
        return label_choices(dimension)[dimension.choices.index(value)]
    return format_exact(value) if exact else format_value(value)


def format_value(value: Any) -> str:
    """Format a value of a trial: at most 5 significant digits, but all of an integer."""
    text = format_exact(value)
    return f"{value:.5g}" if isinstance(value, float) and "." in text else text
