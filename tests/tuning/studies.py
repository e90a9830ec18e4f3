"""Studies with trials that never trained, for the tests of tables, plots and reports."""

import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from surestep.tuning.rows import TrialRow
from surestep.tuning.settings import StudySettings
from surestep.tuning.space import Space

ACCURACY = (("val/accuracy", "max"),)
SPACE = {
    "optim.lr": "log(1e-4, 1e-1)",
    "schedule.name": ["cosine", "linear", "constant"],
    "task.dropout": "uniform(0, 0.5)",
    "task.width": [16, 32, 64],
}
CONDITIONAL = {
    "optim.name": ["adamw", "sgd"],
    "task.width": [16, 32, 64],
    "if.optim.name.adamw.optim.lr": "log(1e-4, 1e-2)",
    "if.optim.name.sgd.optim.lr": "log(1e-2, 1)",
    "if.optim.name.sgd.optim.momentum": "uniform(0.5, 0.99)",
}
# Choices that read alike, and names and choices that HTML could take for tags.
HOSTILE = {
    "optim.lr": "log(1e-4, 1e-1)",
    'task.<b>"x"&y': ["a<b>", "</script><img src=x onerror=alert(1)>", "it's", "C:\\x"],
    "task.mixed": [None, "none", 1, "1", 2.5, False, [1, 2]],
}


def make_study(rows, *, space=SPACE, objectives=ACCURACY, **settings):
    """Return what the reports use of a `SearchStudy`."""
    settings = StudySettings(
        recipe={"name": "digits", "path": "digits.py", "sha256": "0" * 64},
        fixed={"epochs": "15", "task.note": "<img src=x onerror=alert(1)>"},
        space=Space.from_json(space),
        objectives=tuple(objectives),
        trials=max(len(rows), 1),
        **settings,
    )
    return SimpleNamespace(folder=Path("searches/digits"), settings=settings, rows=lambda: rows)


def make_rows(count, *, space=SPACE, objectives=ACCURACY):
    """Return trials in every state; the best learning rate is 0.01, and nothing else matters."""
    drawn = random.Random(0)
    space = Space.from_json(space)
    rows = []
    for number in range(count):
        params = space.choose(lambda dimension: dimension.value_at(drawn.random()))
        value = 0.95 - 0.1 * abs(math.log10(params["optim.lr"]) + 2) + 0.001 * drawn.random()
        curve = {k: value - math.exp(-k) for k in range(1, 8)}
        values = tuple(value * (1 + 10 * at) for at, _ in enumerate(objectives))
        row = TrialRow(
            number, "finished", params, values, curve, 7.5, len(curve), f"{number:04d}", ""
        )
        if number % 3 == 2:
            row = end_early(row, "pruned", 3, "worse than the median")
        elif number % 10 == 7:
            row = end_early(row, "failed", 1, "the loss of step 12 is NaN <b>")
        rows.append(row)
    if count > 3:
        rows[-1] = end_early(rows[-1], "running", 2, "")
    return rows


def end_early(row, state, evaluations, reason):
    curve = {k: value for k, value in row.intermediate.items() if k <= evaluations}
    return replace(
        row,
        state=state,
        values=None,
        intermediate=curve,
        evaluations=len(curve),
        seconds=None if state == "running" else 1.5,
        reason=reason,
    )
