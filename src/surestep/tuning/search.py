"""Search the options of a recipe: create or join a study, work on it, and record what it found."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surestep.base.arguments import suggest_arguments
from surestep.base.errors import ConfigError, Preempted, RunError
from surestep.base.paths import require_local_path
from surestep.base.text import format_count, print_escaped
from surestep.recipes.find import find
from surestep.recipes.load import RecipeCall, call_recipe, load_file
from surestep.tuning.background import start_workers
from surestep.tuning.confirm import Confirmed, confirm_trials, read_confirmed
from surestep.tuning.finish import BEST, Winner, conclude, write_results
from surestep.tuning.open import open_study
from surestep.tuning.options import (
    Keep,
    SearchOptions,
    make_folder,
    make_settings,
    parse_timeout,
    remove_new,
)
from surestep.tuning.process import TIMEOUT, StopRequests
from surestep.tuning.rows import TrialRow
from surestep.tuning.settings import STUDY_FILE, read_settings
from surestep.tuning.slots import Slot
from surestep.tuning.storage import require_optuna
from surestep.tuning.study import SearchStudy
from surestep.tuning.warm_start import add_warm_start, choose_warm_start
from surestep.tuning.worker import Worker, WorkerOptions


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        study: the study.
        trials: all trials, by number.
        winner: the best trial; None if none finished, or if there are several objectives.
        stopped: why the search stopped before its end: "Ctrl-C", "SIGTERM", "timeout"; else "".
        config: the file with the options of the best trial, for `surestep train --config`; None if
            there is no best trial.
        report: the page about all trials; None if SIGTERM stopped the search, or if the page could
            not be written.
    """

    study: SearchStudy
    trials: tuple[TrialRow, ...]
    winner: Winner | None
    stopped: str
    config: Path | None
    report: Path | None

    @property
    def folder(self) -> Path:
        """The folder of the study."""
        return self.study.folder

    @property
    def best(self) -> Winner:
        """The best trial.

        Raises:
            RunError: no trial finished, or there are several objectives; `winner` is None then.
        """
        if self.winner is not None:
            return self.winner
        if self.study.settings.is_multi_objective:
            raise RunError(
                f"{self.folder} has several objectives, so no trial is the best. Use .trials."
            )
        states = ", ".join(sorted({trial.state for trial in self.trials})) or "none was started"
        raise RunError(
            f"{self.folder} has no best trial, because none finished: {states}. Run the same call "
            "again to continue it; to see why trials failed, run: surestep search show "
            + shlex.quote(str(self.folder))
        )

    def __repr__(self) -> str:
        best = "none" if self.winner is None else f"trial {self.best.number} {self.best.values}"
        return f"SearchResult({str(self.folder)!r}, {len(self.trials)} trials, best: {best})"


@suggest_arguments(ConfigError)
def search(
    recipe: str | Path,
    space: Mapping[str, Any] | None = None,
    *,
    trials: int | None = None,
    study: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    objectives: str | Sequence[str] = (),
    where: str | Sequence[str] = (),
    enqueue: Sequence[Mapping[str, Any]] = (),
    warm_start: str | Path | None = None,
    sampler: str | None = None,
    pruner: str | None = None,
    storage: str | None = None,
    workers: int = 1,
    nproc: int = 1,
    threads: int | None = None,
    timeout: str | None = None,
    trial_timeout: str | None = None,
    step_timeout: str | None = None,
    grace_s: float = 60.0,
    keep_checkpoints: Keep = "all",
    confirm: int = 0,
    confirm_seeds: int = 3,
) -> SearchResult:
    """Search the options of a recipe: train it many times, each with other values.

    Each trial is trained in a separate process, in a run folder of the study. The same call
    again continues the study; in a second process it is a second worker.

    Args:
        recipe: the name of a built-in recipe, or the path of a recipe file.
        space: the values that each option may have: "log(1e-5, 1e-2)", "uniform(0, 0.5)",
            "int(16, 256)", "logint(16, 1024)" or a list; None is the `space` of the recipe.
        trials: the whole number of trials, by all workers together. None is the whole grid, if
            the sampler is "grid", which trains no point twice.
        study: folder of the study; the default is a new one, searches/RECIPE-TIME.
        options: of the Config and, as "task.NAME", of the recipe, the same for all trials.
        objectives: what to optimize: a metric, or "seconds", "parameters" or "peak_memory"; with
            its direction, such as "val/accuracy:max". The default is validation.metric.
        where: constraints that a trial has to satisfy so that it can be the best, such as
            "peak_memory < 8GB" or "val/accuracy >= 0.9", on what a trial measured.
        enqueue: points of the first trials, such as [{"optim.lr": 0.01}]; the sampler chooses the
            values that a point leaves out. Trial 0 has the recipe's own values, if they are in the
            space.
        warm_start: folder of another study with the same objectives, whose trials the sampler
            knows.
        sampler: chooses the values: "tpe", "random", "grid", "qmc", "cmaes" or "gp".
        pruner: ends trials early: "median", "percentile", "halving", "hyperband", "patient",
            "wilcoxon" or "none". "percentile:25", the default for a single objective, prunes
            trials that are not among the best 25 %, and nothing in the first quarter of the
            evaluations of a trial.
        storage: URL of a database for the trials; the default is a file in the study folder.
        workers: how many trials run at the same time.
        nproc: training processes of each trial.
        threads: of each training process; the default shares the cores evenly.
        timeout: stop after this time, such as "2h", and save; the same call continues.
        trial_timeout: a trial that takes longer than this fails.
        step_timeout: a trial that takes no training step for this long fails; its start,
            evaluations and checkpoints count too.
        grace_s: a trial without a heartbeat for this long is resumed by another worker.
        keep_checkpoints: "best" deletes the checkpoints of all trials but the best.
        confirm: train so many of the best trials again at the end, and choose the best mean.
        confirm_seeds: with how many other seeds each.

    Returns:
        The trials and the best of them.

    Raises:
        ConfigError, RecipeError: an option, the space or the recipe is invalid.
        RunError: the folder or the storage cannot be written.
        KeyboardInterrupt: Ctrl-C; the trial is saved, and the same call continues.
        Preempted: SIGTERM, SIGUSR1 or SIGHUP; the trial is saved.

    Example:
        >>> import surestep
        >>> space = {"optim.lr": [1e-3, 1e-2], "task.hidden": [16, 64]}
        >>> found = surestep.search(
        ...     "spiral", space, trials=2, options={"epochs": 1}, study="searches/example"
        ... )
        >>> [trial.state for trial in found.trials]
        ['finished', 'finished']
        >>> sorted(found.best.params)
        ['optim.lr', 'task.hidden']
    """
    given = SearchOptions(
        trials=trials,
        study=None if study is None else require_local_path(study),
        space=space,
        objectives=(objectives,) if isinstance(objectives, str) else tuple(objectives),
        where=(where,) if isinstance(where, str) else tuple(where),
        enqueue=tuple(enqueue),
        warm_start=None if warm_start is None else require_local_path(warm_start),
        sampler=sampler,
        pruner=pruner,
        storage=storage,
        workers=workers,
        nproc=nproc,
        threads=threads,
        timeout_s=parse_timeout(timeout),
        trial_timeout_s=parse_timeout(trial_timeout, "trial_timeout"),
        step_timeout_s=parse_timeout(step_timeout, "step_timeout"),
        grace_s=grace_s,
        keep_checkpoints=keep_checkpoints,
        confirm=confirm,
        confirm_seeds=confirm_seeds,
    )
    fixed = dict(options or {})
    call = call_recipe(load_file(find(str(recipe))), fixed, dict.fromkeys(fixed, "options"))
    result = run_search(call, given)
    if result.stopped == "Ctrl-C":
        raise KeyboardInterrupt
    if result.stopped not in ("", TIMEOUT):
        raise Preempted(f"{result.stopped}: the same call continues {result.folder}.")
    return result


def run_search(call: RecipeCall, options: SearchOptions) -> SearchResult:
    """Create or join a study, and work on it until it is complete or this process is stopped.

    Args:
        call: the recipe with the options that are the same for all trials.
        options: of the search.

    Raises:
        ConfigError: an option or the space is invalid, or differs from that of the study.
        RunError: the folder or the storage cannot be written.
    """
    options.check()
    require_optuna()
    folder, is_new = options.study, options.study is None
    recorded = None
    if folder is not None and (folder / STUDY_FILE).exists():
        recorded = read_settings(folder)
    settings = make_settings(call, options, recorded)
    if options.warm_start is not None:
        settings, line = choose_warm_start(settings, options.warm_start, recorded)
        if line:
            print_escaped(line, sys.stderr)
    if folder is None:
        folder = make_folder(call.recipe.name)
    try:
        study = open_study(folder, settings, options.storage)
        add_warm_start(study)
    except BaseException:
        if is_new:
            remove_new(folder)
        raise
    if options.trials and options.trials > settings.trials:  # only a grid has an end
        points = format_count(settings.trials, "point")
        trials = format_count(settings.trials, "trial")
        print_escaped(f"The grid has {points}; {trials}.", sys.stderr)
    _print_start(study, is_new=recorded is None)
    work = WorkerOptions(
        grace_s=options.grace_s,
        keep_best=options.keep_checkpoints == "best",
        timeout_s=options.timeout_s,
        trial_timeout_s=options.trial_timeout_s,
        step_timeout_s=options.step_timeout_s,
        confirm=options.confirm,
        confirm_seeds=options.confirm_seeds,
    )
    with StopRequests(options.timeout_s) as stops, Slot.take(study.folder) as slot:
        worker, confirmed = Worker(study, work, stops), list[Confirmed]()
        with start_workers(options.workers - 1, study, options.storage, work, stops):
            worker.work(slot)
            if options.confirm and not stops.reason:
                confirmed = confirm_trials(worker, slot)
        winner = conclude(worker, slot, confirmed or read_confirmed(study))
        stopped = stops.reason  # what arrives from now on stops nothing: the study is complete
        # The system soon kills a process that gets SIGTERM, and the page takes seconds.
        report = None if stopped == "SIGTERM" else _write_results(study, winner)
        return SearchResult(
            study=study,
            trials=tuple(study.rows()),
            winner=winner,
            stopped=stopped,
            config=None if winner is None else study.folder / BEST,
            report=report,
        )


def _print_start(study: SearchStudy, *, is_new: bool) -> None:
    """Print which study this is, and how much of it is left."""
    settings, rows = study.settings, study.rows()
    done = sum(row.state in ("finished", "pruned", "failed") for row in rows)
    done_of = f"{done} of {study.trials} {'trial is' if study.trials == 1 else 'trials are'} done"
    if is_new:
        how = f"{format_count(study.trials, 'trial')} of {settings.recipe['name']}"
        if settings.enqueued:
            how += f", {format_count(len(settings.enqueued), 'enqueued point')} first"
    elif done < study.trials:
        how = f"joining: {done_of}"
    else:
        how = f"{done_of}; nothing is left to train"
    goals = ", ".join(f"{name} ({way})" for name, way in settings.objectives)
    if settings.where:
        goals += f", where {' and '.join(settings.where)}"
    methods = f"{settings.sampler}; {settings.pruner}"
    print_escaped(f"{study.folder}: {how}; {goals}; {methods}.", sys.stderr)


def _write_results(study: SearchStudy, winner: Winner | None) -> Path | None:
    """Write the results; if they cannot be written, print why, since the study has the trials."""
    try:
        report, messages = write_results(study, winner)
    except RunError as error:
        print_escaped(
            f"{error}\nThe trials are recorded: surestep search show reads them.", sys.stderr
        )
        return None
    for message in messages:
        print_escaped(message, sys.stderr)
    return report
