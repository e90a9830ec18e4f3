"""The end of a search: choose the winner, measure the test split once, write best.toml."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surestep.base.errors import RunError
from surestep.base.files import replace_file
from surestep.recipes.find import recipe_argument
from surestep.record.io import explain_write_errors, write_json
from surestep.record.lock import RunLock
from surestep.tracking.study import describe_missing, finish_study
from surestep.tracking.tracker import StudyResult
from surestep.tuning.confirm import CONFIRM, Confirmed, confirm_folder, has_checkpoints, read_plan
from surestep.tuning.report import write_report
from surestep.tuning.result import RESULT, read_result
from surestep.tuning.rows import TrialRow
from surestep.tuning.settings import StudySettings, read_settings
from surestep.tuning.slots import Slot
from surestep.tuning.study import TRIALS, SearchStudy
from surestep.tuning.table import EXACT, format_value
from surestep.tuning.toml import format_toml
from surestep.tuning.worker import Worker, best_rows, delete_checkpoints

BEST = "best.toml"
_POLL_S = 1.0


@dataclass(frozen=True)
class Winner:
    """The best trial of a study.

    Attributes:
        number: of the trial.
        params: value of each option of the space, and of those that the trial measured.
        values: of the objectives, by name.
        test: the metrics of the test split; None if the recipe has none, or if it failed.
        confirmed: the trials that were trained again, the best mean first.
    """

    number: int
    params: dict[str, Any]
    values: dict[str, float]
    test: dict[str, float] | None
    confirmed: tuple[Confirmed, ...] = ()


def conclude(worker: Worker, slot: Slot, confirmed: Sequence[Confirmed]) -> Winner | None:
    """Choose the winner, measure its test split if that was not done, and write best.toml.

    One worker does this at a time; the others wait, and read what it has measured. If the worker
    was stopped, the winner is the best trial so far, and nothing is measured or deleted.

    Args:
        worker: of the study.
        slot: of the worker.
        confirmed: the trials that were trained again, the best mean first.

    Returns:
        The winner; None if no trial finished, or if there are several objectives.
    """
    study = worker.study
    rows = study.rows()
    ranked = best_rows(rows, study)
    if not ranked or study.settings.is_multi_objective:
        return None
    row = ranked[0]
    if confirmed and not math.isnan(confirmed[0].mean):
        row = next(entry for entry in ranked if entry.number == confirmed[0].number)
    lock, test = _lock(worker), None
    if lock is not None:
        try:
            test = _measure_test(worker, slot, row)
            if worker.options.keep_best and not worker.stops.reason:
                delete_checkpoints(study, rows, [row.number])
        finally:
            lock.release()
    values = dict(zip((n for n, _ in study.settings.objectives), row.values or (), strict=True))
    winner = Winner(row.number, row.options, values, test, tuple(confirmed))
    write_best(study, winner)
    return winner


def _lock(worker: Worker) -> RunLock | None:
    """Wait until this worker alone writes the results; None if it is stopped."""
    folder = worker.study.folder / CONFIRM
    folder.mkdir(exist_ok=True)
    while not worker.stops.reason:
        try:
            return RunLock(folder)
        except RunError:
            worker.stops.wait(_POLL_S)
    return None


def _measure_test(worker: Worker, slot: Slot, row: TrialRow) -> dict[str, float] | None:
    """Return the metrics of the test split of a trial; they are measured once and recorded."""
    path = worker.study.folder / RESULT
    recorded = read_result(worker.study.folder)
    key = str(row.number)
    if key in recorded["test"]:
        found: dict[str, float] | None = recorded["test"][key]["metrics"]
        return found
    run = _find_checkpoints(worker.study, row)
    ended = worker.run_job({"do": "test", "options": row.params, "run": run}, slot)
    if ended.stopped:
        return None
    metrics = None if ended.result is None else ended.result["test"]
    if ended.reason:
        worker.print_line(f"The test split could not be measured: {ended.reason}")
        return None
    recorded["test"][key] = {"run": str(run.relative_to(worker.study.folder)), "metrics": metrics}
    write_json(path, recorded)
    if len(recorded["test"]) > 1 and metrics is not None:
        worker.print_line(
            f"The test split was measured for {len(recorded['test'])} trials by now: the best of "
            "them is no longer an unbiased estimate."
        )
    return metrics


def _find_checkpoints(study: SearchStudy, row: TrialRow) -> Path:
    """Return the run of a trial; if its checkpoints were deleted, one that confirmed it."""
    own = study.folder / TRIALS / str(row.run)
    again = confirm_folder(study, row, 1)
    return again if not has_checkpoints(own) and again.exists() else own


def write_best(study: SearchStudy, winner: Winner) -> Path:
    """Write the options of the winner, for `surestep train RECIPE --config best.toml`."""
    path = study.folder / BEST
    recipe = shlex.quote(recipe_argument(study.settings.recipe))
    values = ", ".join(f"{name} {value:.6g}" for name, value in winner.values.items())
    options = {**study.settings.fixed, **winner.params}
    options.pop("checkpoint.mirror", None)  # it has the trials, and a mirror holds one run
    lines = [
        f"# Trial {winner.number} of {study.folder.resolve().name}: {values}".replace("\n", " "),
        f"# surestep train {recipe} --config {shlex.quote(str(path))}".replace("\n", " "),
        *(f"{name} = {format_toml(value)}" for name, value in sorted(options.items())),
    ]
    with explain_write_errors(path, "folder", " with --study"), replace_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def describe_winner(study: SearchStudy, winner: Winner, n_finished: int) -> list[str]:
    """Return lines about the winner, and about what its value is worth.

    Args:
        study: of the trials.
        winner: the best of them.
        n_finished: how many it is the best of.
    """
    name = study.settings.objectives[0][0]
    params = ", ".join(f"{key}={format_value(value)}" for key, value in winner.params.items())
    lines = [f"Best: trial {winner.number}, {name} {winner.values[name]:.6g}: {params}"]
    again = next((entry for entry in winner.confirmed if entry.number == winner.number), None)
    if again is not None:
        lines.append(_describe_confirmed(name, winner.values[name], again))
    elif n_finished > 1 and name not in EXACT:
        lines.append(explain_bias(name, winner.values[name], study.settings, n_finished))
    if winner.test is not None:
        shown = "  ".join(f"{key} {value:.6g}" for key, value in winner.test.items())
        lines.append(f"Test split, measured once: {shown}")
    return lines


def _describe_confirmed(name: str, value: float, again: Confirmed) -> str:
    """Return what a new run of a trial will give."""
    if len(again.values) == 1:
        found = f"1 other seed: {name} {again.mean:.6g}"
    else:
        found = (
            f"{len(again.values)} other seeds: {name} {again.mean:.6g}, "
            f"standard deviation {again.spread:.2g}"
        )
    return (
        f"Trained again with {found}. Expect {again.mean:.6g} of a new run, not the {value:.6g} "
        "of the trial."
    )


def explain_bias(name: str, value: float, settings: StudySettings, n_finished: int) -> str:
    """Return why the best of several trials is not what a new run gives."""
    worse = "lower" if settings.objectives[0][1] == "max" else "higher"
    most = min(3, n_finished)
    return (
        f"{name} {value:.6g} is the best of {n_finished} noisy values, so a new run will probably "
        f"be {worse}. To train the best {most} again with other seeds, add --confirm {most}."
    )


def write_results(study: SearchStudy, winner: Winner | None) -> tuple[Path, list[str]]:
    """Write result.json and the report, and send them to the trackers of the trials.

    Returns:
        The page of the report, and messages of trackers that failed or lack events of trials.

    Raises:
        RunError: a file cannot be written.
    """
    path, page = study.folder / RESULT, study.folder / "report.html"
    write_json(
        path, {**read_result(study.folder), "winner": None if winner is None else asdict(winner)}
    )
    write_report(study, page, study.folder / "report.json")
    missing = describe_missing(_list_ended(study), study.folder)
    result = read_study_result(study.folder)
    if winner is None or result is None:
        return page, missing
    options = read_plan(study, winner.number)
    return page, [*missing, *finish_study(options.get("logging.trackers") or (), result)]


def read_study_result(folder: Path) -> StudyResult | None:
    """Return the result of a study for its trackers; None if it has no winner.

    Raises:
        RunError: a file of the study cannot be read.
    """
    winner = read_result(folder)["winner"]
    if winner is None:
        return None
    metrics = {**winner.get("values", {}), **(winner["test"] or {})}
    files = (folder / name for name in ("report.html", BEST, RESULT))
    return StudyResult(
        name=read_settings(folder).name,
        folder=folder,
        params=winner.get("params", {}),
        metrics={name: value for name, value in metrics.items() if value is not None},
        files=[path for path in files if path.exists()],
    )


def _list_ended(study: SearchStudy) -> list[Path]:
    """Return the run folders of the trials that have ended, and of those that confirmed them."""
    done = [row for row in study.rows() if row.state in ("finished", "pruned", "failed")]
    runs = [study.folder / TRIALS / row.run for row in done if row.run is not None]
    again = (path.with_suffix("") for path in (study.folder / CONFIRM).glob("*.json"))
    return [*runs, *sorted(again)]
