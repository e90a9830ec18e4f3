"""`surestep runs`."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from fnmatch import fnmatch
from typing import Annotated, Any, Literal

import tyro

from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.parse import command
from surestep.record.io import dumps
from surestep.record.runs import RunSummary, State, list_runs

# Runs for which the key is None come last.
_KEYS: dict[str, Callable[[RunSummary], Any]] = {
    "age": lambda run: None if run.written is None else -run.written,
    "name": lambda run: str(run.path),
    "state": lambda run: run.state,
    "step": lambda run: None if run.step is None else -run.step,
    "best": lambda run: (
        None if run.best is None else (run.metric, run.best if run.mode == "min" else -run.best)
    ),
}


@command("runs")
def run(
    folder: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = "runs",
    /,
    *,
    sort: Literal["age", "name", "state", "step", "best"] = "age",
    state: tuple[State, ...] = (),
    name: str = "*",
    recipe: str = "*",
    metric: str = "*",
    json: bool = False,
) -> int:
    """List the runs in a folder: state, step, best metric and age.

    Args:
        folder: Folder that the runs are in, at any depth.
        sort: Newest, by name, by state, most steps, or best metric first.
        state: Only runs in these states, such as `--state running finished`.
        name: Only runs whose folder matches this pattern, such as "digits-*".
        recipe: Only runs of recipes whose name matches this pattern.
        metric: Only runs with this validation.metric, such as val/loss.
        json: Print the list as JSON.
    """
    every = list_runs(require_local_path(folder))
    chosen = [
        run
        for run in every
        if (not state or run.state in state)
        and fnmatch(run.path.resolve().name, name)
        and fnmatch(run.recipe, recipe)
        and fnmatch(run.metric or "", metric)
    ]
    key = _KEYS[sort]
    without = [run for run in chosen if key(run) is None]
    chosen = sorted((run for run in chosen if key(run) is not None), key=key) + without
    if json:
        print_json(dumps([{**asdict(run), "path": str(run.path)} for run in chosen], indent=1))
    elif not chosen:
        none = "no runs yet" if not every else f"{len(every)} runs, and none of them matches"
        print_escaped(f"{folder} has {none}.", file=sys.stderr)
    else:
        columns = ("run", "recipe", "state", "step", "best metric", "at step", "age")
        show.print_table(folder, columns, map(_row, chosen))
    for run in chosen:
        if run.problem:
            print_escaped(f"{run.path}: {run.problem}", file=sys.stderr)
    return 0


def _row(run: RunSummary) -> tuple[str, ...]:
    step = "" if run.step is None else f"{run.step:,}"
    if run.step is not None and run.total_steps is not None:
        step += f" of {run.total_steps:,}"
    return (
        str(run.path),
        run.recipe,
        run.state,
        step,
        "" if run.best is None else f"{run.metric} {run.best:.4g}",
        "" if run.best_step is None or run.best is None else f"{run.best_step:,}",
        "not known" if run.written is None else show.format_age(time.time() - run.written),
    )
