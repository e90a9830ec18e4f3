"""`surestep runs`."""

import csv
import io
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from surestep.base.errors import ConfigError, RunError
from surestep.base.exit_codes import FAILED
from surestep.base.paths import require_local_path
from surestep.base.text import format_bytes, format_count, one_line, print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.follow import follow as follow_changes
from surestep.cli.parse import command
from surestep.record.checkpoint_ref import is_run
from surestep.record.delete_run import delete_run
from surestep.record.io import dumps
from surestep.record.progress import State
from surestep.record.run import Run
from surestep.record.runs import RunSummary, find_runs, runs

_COLUMNS = ("run", "recipe", "state", "step", "best metric", "at step", "size", "age")


@command("runs")
def run(
    folder: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = "runs",
    /,
    *,
    sort: Literal["age", "name", "state", "step", "size", "best"] = "age",
    state: tuple[State, ...] = (),
    name: str = "*",
    recipe: str = "*",
    metric: str = "*",
    delete: str = "",
    follow: bool = False,
    csv: bool = False,
    json: bool = False,
) -> int:
    """List the runs in a folder: state, step, best metric, size on disk and age.

    Args:
        folder: Folder that the runs are in, at any depth. With --csv, it can be a run.
        sort: Newest, by name, by state, most steps, most bytes, or best metric first.
        state: Only runs in these states, such as `--state running finished`.
        name: Only runs whose folder matches this pattern, such as "digits-*".
        recipe: Only runs of recipes whose name matches this pattern.
        metric: Only runs with this validation.metric, such as val/loss.
        delete: Delete the runs whose folder matches this pattern, of those that the other options
            select. It lists them and asks first. A run that is in use is not deleted.
        follow: Print the list again each second, until Ctrl-C.
        csv: Print the list as CSV; of a run, its history: a line for each step.
        json: Print the list as JSON.
    """
    place = require_local_path(folder)
    if bool(delete) + follow + csv + json > 1:
        raise ConfigError(
            "--delete, --follow, --csv and --json exclude each other. Pass one of them."
        )
    if csv and is_run(place):
        if (sort, state, name, recipe, metric) != ("age", (), "*", "*", "*"):
            raise ConfigError(
                f"{folder} is a run, whose steps --csv prints. Leave out the options that select "
                "runs, or pass the folder that it is in."
            )
        history = Run(place).history()
        _print_csv(history, history.rows())
        return 0

    def choose() -> Sequence[RunSummary]:
        return runs(place, sort=sort, state=state, name=name, recipe=recipe, metric=metric)

    if follow:
        follow_changes(lambda: _format_table(folder, choose()), time.monotonic, lambda: False)
        return 0
    chosen = choose()
    if delete:
        return _delete([run for run in chosen if fnmatch(run.name, delete)], place)
    if json:
        print_json(dumps(list(map(_as_dict, chosen)), indent=1))
    elif csv:
        columns = [field.name for field in fields(RunSummary)]
        _print_csv(columns, map(_as_dict, chosen))
    elif not chosen:
        every = sum(1 for _ in find_runs(place))
        none = "no runs yet" if not every else f"{every} runs, and none of them matches"
        print_escaped(f"{folder} has {none}.", file=sys.stderr)
    else:
        _print_table(folder, chosen)
    for run in chosen:
        if run.problem:
            print_escaped(f"{run.path}: {run.problem}", file=sys.stderr)
    return 0


def _as_dict(run: RunSummary) -> dict[str, Any]:
    return {**asdict(run), "path": str(run.path)}


def _print_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a table as CSV; names from the files of a run are escaped, and None is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(one_line, columns))
    for row in rows:
        writer.writerow("" if cell is None else one_line(str(cell)) for cell in row.values())


def _print_table(folder: str, chosen: Sequence[RunSummary]) -> None:
    size = format_bytes(sum(run.bytes for run in chosen))
    title = f"{folder}: {format_count(len(chosen), 'run')}, {size}"
    show.print_table(title, _COLUMNS, map(_row, chosen))


def _format_table(folder: str, chosen: Sequence[RunSummary]) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        _print_table(folder, chosen)
    return text.getvalue()


def _delete(chosen: Sequence[RunSummary], folder: Path) -> int:
    """Delete runs, after a question; return 1 if not all of them were deleted."""
    running = [run for run in chosen if run.state == "running"]
    others = [run for run in chosen if run.state != "running"]
    for run in running:
        print_escaped(f"{run.path} is running, and stays.", file=sys.stderr)
    if not others:
        print_escaped(f"No run in {folder} is to be deleted.", file=sys.stderr)
        return FAILED if running else 0
    _print_table(str(folder), others)
    print_escaped(f"Delete {format_count(len(others), 'run')}, for good? Type yes: ", sys.stderr)
    if sys.stdin.readline().strip() != "yes":
        print_escaped("Nothing was deleted.", file=sys.stderr)
        return FAILED
    failed = len(running)
    for run in others:
        try:
            delete_run(run.path, below=folder)
        except RunError as error:
            failed += 1
            print_escaped(str(error), file=sys.stderr)
        else:
            print_escaped(f"{run.path} is deleted: {format_bytes(run.bytes)}.")
    return FAILED if failed else 0


def _row(run: RunSummary) -> tuple[str, ...]:
    step = "" if run.step is None else f"{run.step:,}"
    if run.step is not None and run.total_steps is not None:
        step += f" of {run.total_steps:,}"
    if run.micro_batch_size is not None:
        size = f"micro-batches of {run.micro_batch_size:,}"
        step = f"{step}, {size}" if step else size
    return (
        str(run.path),
        run.recipe,
        run.state,
        step,
        "" if run.best is None else f"{run.metric} {run.best:.4g}",
        "" if run.best_step is None or run.best is None else f"{run.best_step:,}",
        format_bytes(run.bytes),
        "not known" if run.written is None else show.format_age(time.time() - run.written),
    )
