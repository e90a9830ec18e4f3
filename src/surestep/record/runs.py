"""Find the runs in a folder, and summarize each in one row."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, get_args

from surestep.base.errors import ConfigError, RunError, SurestepError
from surestep.base.paths import require_local_path
from surestep.base.text import format_count
from surestep.record.checkpoint.discovery import size_on_disk
from surestep.record.checkpoint_ref import is_run
from surestep.record.progress import State, read_progress
from surestep.record.run import Run

Sort = Literal["age", "name", "state", "step", "size", "best"]


@dataclass(frozen=True)
class RunSummary:
    """A run in one row.

    Attributes:
        path: its folder.
        state: by its status.json. A killed run has no process, and did not write how it ended.
        recipe: the name of its recipe; "" if a script started it.
        step: the last step that is known; None if there is none.
        total_steps: the length of the run, if it is known.
        metric: the metric that decides the best checkpoint; None without evaluations.
        mode: whether "min" or "max" is better.
        best: the value of the metric at the best checkpoint, if there is one.
        best_step: the step of that checkpoint.
        micro_batch_size: what `micro_batch_size="fit"` found; None if the size was set.
        written: when the run was last written to, in seconds since 1970.
        bytes: the size of its files; links are not followed.
        problem: why the state is "unreadable"; else "".
    """

    path: Path
    state: State
    recipe: str = ""
    step: int | None = None
    total_steps: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    best: float | None = None
    best_step: int | None = None
    micro_batch_size: int | None = None
    written: float | None = None
    bytes: int = 0
    problem: str = ""

    @property
    def name(self) -> str:
        """The name of the run: the name of its folder."""
        return self.path.resolve().name

    @property
    def run(self) -> Run:
        """The run folder, to read.

        Raises:
            RunError: it is gone, or has no config.json.
        """
        return Run(self.path)


def open_run_folder(run: Run | RunSummary | str | Path) -> Run:
    """Return a run that is given in any of the forms that Python functions accept.

    Raises:
        RunError: the folder does not exist, or is not a run folder.
    """
    if isinstance(run, RunSummary):
        return run.run
    return run if isinstance(run, Run) else Run(Path(run))


class RunList(tuple[RunSummary, ...]):
    """Runs of a folder, in their order."""

    def best(self, metric: str | None = None) -> RunSummary:
        """Return the run with the best value at its best checkpoint.

        Args:
            metric: only runs with this validation.metric, such as "val/loss".

        Raises:
            RunError: no run has a value, or the metrics of the runs differ.
        """
        known = [run for run in self if run.best is not None and metric in (None, run.metric)]
        goals = Counter((str(run.metric), str(run.mode)) for run in known)
        if not goals:
            of = "" if metric is None else f" of {metric}"
            raise RunError(
                f"None of {format_count(len(self), 'run')} has a best value{of}. Evaluate while "
                "training: set validation.every, and give the Task validation data."
            )
        if len(goals) > 1:
            counts = ", ".join(
                f"{name} ({mode}) of {format_count(count, 'run')}"
                for (name, mode), count in sorted(goals.items())
            )
            raise RunError(
                f"The runs cannot be compared, because their validation.metric differs: {counts}. "
                "Select some of them, or pass the metric, such as best("
                f"{next(iter(goals))[0]!r})."
            )
        return min(known, key=_KEYS["best"])


# Runs for which the key is None come last.
_KEYS: dict[str, Callable[[RunSummary], Any]] = {
    "age": lambda run: None if run.written is None else -run.written,
    "name": lambda run: str(run.path),
    "state": lambda run: run.state,
    "step": lambda run: None if run.step is None else -run.step,
    "size": lambda run: -run.bytes,
    "best": lambda run: (
        None if run.best is None else (run.metric, run.best if run.mode == "min" else -run.best)
    ),
}


def runs(
    folder: str | Path = "runs",
    *,
    sort: Sort = "age",
    state: State | Sequence[State] = (),
    name: str = "*",
    recipe: str = "*",
    metric: str = "*",
) -> RunList:
    """Return the runs in a folder and in the folders below it, without opening or locking them.

    Args:
        folder: the folder.
        sort: "age" is newest first, "step" most steps, "size" most bytes, "best" best metric; also
            "name" and "state".
        state: only runs in this state, or in one of these, such as "finished".
        name: only runs whose folder matches this pattern, such as "digits-*".
        recipe: only runs of recipes whose name matches this pattern.
        metric: only runs whose validation.metric matches this pattern.

    Returns:
        A tuple with a summary of each; its method `best()` returns the best of them.

    Raises:
        ConfigError: there is no such order or state.
        RunError: there is no such folder.
    """
    states = (state,) if isinstance(state, str) else state
    _check_choices("sort", [sort], get_args(Sort))
    _check_choices("state", states, get_args(State))
    found = [
        run
        for run in list_runs(require_local_path(folder))
        if (not states or run.state in states)
        and fnmatch(run.name, name)
        and fnmatch(run.recipe, recipe)
        and fnmatch(run.metric or "", metric)
    ]
    key = _KEYS[sort]
    ranked = sorted((run for run in found if key(run) is not None), key=key)
    return RunList([*ranked, *(run for run in found if key(run) is None)])


def _check_choices(option: str, values: Sequence[str], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise ConfigError(f"{option}={value!r} is not known. Use one of {', '.join(known)}.")


def list_runs(folder: Path) -> list[RunSummary]:
    """Summarize the runs in a folder and in the folders below it, by path.

    Raises:
        RunError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunError(f"There is no folder {folder}. Pass the folder that the runs are in.")
    return sorted(map(summarize, find_runs(folder)), key=lambda run: str(run.path))


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders in a folder and in the folders below it."""
    for path, folders, _ in os.walk(folder):
        if is_run(Path(path)):
            folders.clear()
            yield Path(path)


def newest_run(folder: Path) -> Path:
    """Return the run in a folder, or in the folders below it, that was written to last.

    Raises:
        RunError: there is none.
    """
    newest = max(find_runs(folder), key=lambda path: _written(path) or 0.0, default=None)
    if newest is None:
        raise RunError(f"There is no run in {folder}. Pass the folder of a run.")
    return newest


def _written(path: Path) -> float | None:
    """Return when a run was last written to, in seconds since 1970."""
    times = []
    for name in ("status.json", "events.jsonl"):
        with suppress(OSError):
            times.append((path / name).stat().st_mtime)
    return max(times, default=None)


def summarize(path: Path) -> RunSummary:
    """Summarize a run. A damaged one has the state "unreadable"."""
    written, size = _written(path), sum(size_on_disk(Path(place)) for place, _, _ in os.walk(path))
    try:
        run = Run(path)
        progress = read_progress(path, run.config, run.status)
    except SurestepError as error:
        return RunSummary(path, "unreadable", written=written, bytes=size, problem=str(error))
    return RunSummary(path, written=written, bytes=size, **vars(progress))
