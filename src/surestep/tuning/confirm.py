"""Confirm the best trials of a search: train them again with other seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from surestep.base.errors import RunError
from surestep.record.io import read_json, write_json
from surestep.record.lock import RunLock
from surestep.tuning.rows import TrialRow
from surestep.tuning.slots import Slot
from surestep.tuning.study import TRIALS, SearchStudy
from surestep.tuning.worker import Worker, best_rows, delete_checkpoints_of

CONFIRM = "confirm"
_ATTEMPTS = 3  # of a run whose process dies without a reason
_POLL_S = 1.0


class _Over(TypedDict):
    value: float | None


_OVER: TypeAdapter[Any] = TypeAdapter(_Over)


@dataclass(frozen=True)
class Confirmed:
    """A trial that was trained again with other seeds.

    Attributes:
        number: of the trial.
        values: of the objective, one for each seed; NaN for a run that failed.
        mean: of the values; NaN if one of them is.
        spread: their standard deviation; 0 for a single one, and NaN as the mean.
    """

    number: int
    values: tuple[float, ...]
    mean: float
    spread: float


def confirm_trials(worker: Worker, slot: Slot) -> list[Confirmed]:
    """Train the best trials again with other seeds; workers share this, a run at a time.

    Args:
        worker: does the training, with the `confirm` options of the worker.
        slot: of the worker.

    Returns:
        The trials, the best mean first; none if the worker was stopped before the end.
    """
    study, seeds = worker.study, worker.options.confirm_seeds
    rows = best_rows(study.rows(), study)[: worker.options.confirm]
    runs = [(row, index) for row in rows for index in range(1, seeds + 1)]
    while not worker.stops.reason:
        missing = [pair for pair in runs if _read_value(study, *pair) is None]
        if not missing:
            for pair in runs:  # of a worker that died before it did so
                _drop_checkpoints(study, *pair)
            return _compare(study, rows, seeds)
        if not any(_confirm_alone(worker, slot, *pair) for pair in missing):
            worker.stops.wait(_POLL_S)
    return []


def read_confirmed(study: SearchStudy) -> list[Confirmed]:
    """Return what an earlier command confirmed; none if the best trials are others now."""
    names = [path.stem.split("-") for path in (study.folder / CONFIRM).glob("*-*.json")]
    numbers = {int(number) for number, _ in names}
    rows = best_rows(study.rows(), study)[: len(numbers)]
    seeds = max((int(index) for _, index in names), default=0)
    runs = [(row, index) for row in rows for index in range(1, seeds + 1)]
    is_whole = all(_read_value(study, *run) is not None for run in runs)
    return _compare(study, rows, seeds) if is_whole else []


def _confirm_alone(worker: Worker, slot: Slot, row: TrialRow, index: int) -> bool:
    """Train a trial with another seed, unless another worker does; return if this worker did."""
    claim = worker.study.folder / CONFIRM / "claims" / f"{row.number:04d}-{index}"
    claim.mkdir(parents=True, exist_ok=True)
    try:
        lock = RunLock(claim)  # of this process: if it is killed, another worker has it next
    except RunError:
        return False
    try:
        if _read_value(worker.study, row, index) is None:
            _confirm(worker, slot, row, index)
            _drop_checkpoints(worker.study, row, index)
    finally:
        lock.release()
    return True


def _drop_checkpoints(study: SearchStudy, row: TrialRow, index: int) -> None:
    """Delete the checkpoints of a run that is over, if the trial itself has some."""
    has_own = index > 1 or has_checkpoints(study.folder / TRIALS / str(row.run))
    if has_own and _read_value(study, row, index) is not None:
        delete_checkpoints_of(confirm_folder(study, row, index))


def has_checkpoints(run: Path) -> bool:
    """Return whether a run has checkpoints; they may have been deleted."""
    return any((run / "checkpoints").glob("step-*"))


def confirm_folder(study: SearchStudy, row: TrialRow, index: int) -> Path:
    """Return the run folder of a trial with another seed, from 1."""
    return study.folder / CONFIRM / f"{row.number:04d}-{index}"


def _read_value(study: SearchStudy, row: TrialRow, index: int) -> float | None:
    """Return the objective of a run that is over; NaN if it failed, None if it is not over."""
    try:
        found = read_json(confirm_folder(study, row, index).with_suffix(".json"), _OVER)
    except RunError:
        return None
    return math.nan if found["value"] is None else float(found["value"])


def _confirm(worker: Worker, slot: Slot, row: TrialRow, index: int) -> None:
    """Train a trial with another seed, and write the result beside the run folder."""
    study, folder = worker.study, confirm_folder(worker.study, row, index)
    name = study.settings.objectives[0][0]
    options = {**row.options, "seed": int(read_plan(study, row.number)["seed"]) + index}
    for _ in range(_ATTEMPTS):
        ended = worker.run_job({"do": "train", "options": options, "run": folder}, slot)
        if ended.stopped:
            return
        if ended.result is not None or ended.is_overdue:
            break
    value = None if ended.result is None else ended.result["metrics"].get(name)
    write_json(
        folder.with_suffix(".json"),
        {"seed": options["seed"], "value": value, "reason": ended.reason},
    )
    shown = f"{name} {value:.6g}" if value is not None else f"failed  {ended.reason}"
    worker.print_line(f"Trial {row.number} again, seed {options['seed']}: {shown}")


def _compare(study: SearchStudy, rows: Sequence[TrialRow], seeds: int) -> list[Confirmed]:
    """Return the confirmed trials, the best mean first; those with a failed run are last."""
    found = []
    for row in rows:
        values = tuple(_read_value(study, row, index) or 0.0 for index in range(1, seeds + 1))
        mean = statistics.fmean(values)
        spread = mean  # NaN, if a run failed
        if not math.isnan(mean):
            spread = statistics.stdev(values) if seeds > 1 else 0.0
        found.append(Confirmed(row.number, values, mean, spread))
    sign = 1.0 if study.settings.objectives[0][1] == "min" else -1.0
    return sorted(found, key=lambda one: (math.isnan(one.mean), sign * one.mean, one.number))


def read_plan(study: SearchStudy, number: int) -> dict[str, Any]:
    """Return the value of each option in a trial."""
    run = study.folder / TRIALS / f"{number:04d}"
    return {entry["option"]: entry["value"] for entry in read_json(run / "plan.json")}
