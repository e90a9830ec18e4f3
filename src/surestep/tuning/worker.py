"""A worker of a study: claims trials, one after the other, and runs each in a separate process.

Any number of workers share a study, on any number of machines.
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from surestep.base.errors import RunError
from surestep.base.secrets import describe_error
from surestep.base.text import format_duration, one_line, print_escaped
from surestep.recipes.find import recipe_argument
from surestep.record.lock import RunLock, is_locked, lock_owner
from surestep.tuning.evaluations import PRUNED
from surestep.tuning.process import (
    STEP_TIMEOUT,
    TRIAL_TIMEOUT,
    Ended,
    Limits,
    StopRequests,
    TrialProcess,
)
from surestep.tuning.rows import ClaimedTrial, Observer, TrialRow
from surestep.tuning.slots import Slot, list_gpus, share_gpus, share_threads
from surestep.tuning.study import TRIALS, SearchStudy
from surestep.tuning.table import find_best, format_value

_POLL_S = 1.0  # between two checks of the trials of other workers
_LOCK_POLL_S = 0.3
_BEATS_PER_GRACE = 6


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker works; it may differ between the workers of a study.

    Attributes:
        grace_s: a trial without a heartbeat for this long is resumed by another worker.
        keep_best: delete the checkpoints of all trials but the best, or those to confirm.
        timeout_s: stop after this time; None is without limit.
        trial_timeout_s: a trial that takes longer fails.
        step_timeout_s: a trial that takes no step for this long fails.
        confirm: train so many of the best trials again at the end.
        confirm_seeds: with how many other seeds each.
    """

    grace_s: float = 60.0
    keep_best: bool = False
    timeout_s: float | None = None
    trial_timeout_s: float | None = None
    step_timeout_s: float | None = None
    confirm: int = 0
    confirm_seeds: int = 3


class Heartbeat:
    """A thread that shows the other workers that this one is alive.

    Attributes:
        on_lost: called once when another worker has taken the trial.
    """

    def __init__(self, study: SearchStudy, trial: ClaimedTrial, grace_s: float) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self._study, self._trial = study, trial
        self._interval_s = grace_s / _BEATS_PER_GRACE
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="surestep-heartbeat", daemon=True)

    def _run(self) -> None:
        has_failed = False
        while not self._is_over.wait(self._interval_s):
            try:
                if not self._study.beat(self._trial):
                    self.on_lost()
                    return
                has_failed = False
            except Exception as error:  # of the storage; the next beat may reach it again
                if has_failed:
                    continue
                has_failed = True
                print_escaped(
                    f"Trial {self._trial.number}: no heartbeat could be written: "
                    f"{describe_error(error)}",
                    sys.stderr,
                )

    def __enter__(self) -> "Heartbeat":
        self._study.beat(self._trial)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


class Worker:
    """Works on a study until nothing is left, or until it is stopped.

    Args:
        study: the open study.
        options: how it works.
        stops: what stops it.
        print_line: prints a line for each trial.
    """

    def __init__(
        self,
        study: SearchStudy,
        options: WorkerOptions,
        stops: StopRequests,
        print_line: Callable[[str], None] | None = None,
    ) -> None:
        self.study = study
        self.options = options
        self.stops = stops
        self.print_line = print_line or (lambda text: print_escaped(text, sys.stderr))
        self._observer = Observer(options.grace_s)
        self._gpus = list_gpus()
        self._is_lowered = False

    def work(self, slot: Slot) -> None:
        """Run trials until the whole number is reached and no other worker runs one."""
        study = self.study
        while not self.stops.reason:
            for stale in study.stale_trials(self._observer):
                if study.retry(stale):
                    self.print_line(f"Trial {stale.number}: its worker died.")
            trial = study.claim_trial()
            if trial is not None and study.answer(trial):
                self._print_row(trial, study.rows())
            elif trial is not None:
                self._run_trial(trial, slot)
            elif any(row.state in ("running", "waiting") for row in study.rows()):
                self.stops.wait(_POLL_S)
            else:
                return

    def _run_trial(self, trial: ClaimedTrial, slot: Slot) -> None:
        """Run a trial and record how it ended."""
        study, folder = self.study, self.study.folder / TRIALS
        started = time.monotonic()
        with Heartbeat(study, trial, self.options.grace_s) as heartbeat:
            ended = self.run_job(
                {"do": "train", "options": trial.params, "run": folder / trial.run},
                slot,
                answer=partial(self._report, trial),
                on_start=lambda process: setattr(heartbeat, "on_lost", process.give_up),
                spent_s=trial.seconds,
            )
            seconds = trial.seconds + time.monotonic() - started
            is_ours = self._record(trial, ended, seconds)
        if not is_ours:
            self.print_line(f"Trial {trial.number}: another worker has taken it over.")
        elif not ended.stopped:
            rows = study.rows()
            self._print_row(trial, rows)
            if self.options.keep_best:
                best = best_rows(rows, study)
                if not study.settings.is_multi_objective:  # one of these will be the winner
                    best = best[: max(1, self.options.confirm)]
                delete_checkpoints(study, rows, [row.number for row in best])

    def _print_row(self, trial: ClaimedTrial, rows: list[TrialRow]) -> None:
        row = next(row for row in rows if row.number == trial.number)
        self.print_line(describe_row(row, self.study))

    def _report(self, trial: ClaimedTrial, evaluations: list[dict[str, Any]]) -> bool:
        """Record evaluations; return whether to prune the trial after the last of them."""
        objective, prunes = self.study.settings.objectives[0][0], False
        try:
            for evaluation in evaluations:
                if (value := evaluation["metrics"].get(objective)) is not None:
                    prunes = self.study.report(trial, evaluation["number"], value, evaluation["of"])
        except Exception as error:  # of the storage: training continues without it
            self.print_line(
                f"Trial {trial.number}: an evaluation could not be recorded: "
                f"{describe_error(error)}"
            )
        return prunes

    def _record(self, trial: ClaimedTrial, ended: Ended, seconds: float) -> bool:
        """Record how a trial ended; return whether it was still this worker's."""
        study, result = self.study, ended.result
        if ended.stopped and not self.stops.reason:
            return study.retry(trial, "its process was stopped", seconds)
        if ended.stopped:
            return study.hand_back(trial, f"stopped by {self.stops.reason}", seconds)
        if result is None:
            return study.fail(trial, ended.reason, seconds)
        if result["pruned"]:
            reason = f"{PRUNED} after step {result['last_step']}"
            return study.prune(trial, reason, seconds, result["metrics"])
        names = [name for name, _ in study.settings.objectives]
        needed = [*names, *(one.name for one in study.settings.constraints)]
        missing = [name for name in needed if name not in result["metrics"]]
        if missing:
            return study.fail(trial, f"no evaluation has a number for {missing[0]}", seconds)
        values = [result["metrics"][name] for name in names]
        return study.finish(trial, values, seconds, result["metrics"])

    def run_job(
        self,
        job: Mapping[str, Any],
        slot: Slot,
        answer: Callable[[list[dict[str, Any]]], bool] = lambda _: False,
        on_start: Callable[[TrialProcess], None] = lambda _: None,
        spent_s: float = 0.0,
    ) -> Ended:
        """Run a job of the study in a separate process; see `TrialProcess`.

        Args:
            job: what to do, the options beside those of all trials, and the run folder.
            slot: of this worker.
            answer: called with the new evaluations; returns whether to prune.
            on_start: called with the process before it runs.
            spent_s: how long earlier processes of the trial took.

        Raises:
            RunError: the study folder cannot be written.
        """
        settings, run = self.study.settings, Path(job["run"])
        options = {**settings.fixed, **job["options"]}
        threads, trains = self._choose_threads(slot), job["do"] == "train"
        work = self.options
        limits = Limits(work.trial_timeout_s, work.step_timeout_s if trains else None)
        try:
            run.parent.mkdir(parents=True, exist_ok=True)
            if (ended := self._wait_for(run, limits)) is not None:
                return ended
            process = TrialProcess(
                job={
                    **job,
                    "recipe": recipe_argument(settings.recipe),
                    "options": options,
                    "locations": {},
                    "run": str(run.resolve()),
                    "study": settings.name,
                },
                log=run.with_name(f"{run.name}.log"),
                nproc=settings.nproc if trains else 1,
                environment={
                    "OMP_NUM_THREADS": str(threads),
                    **share_gpus(self._gpus, slot.number, settings.nproc),
                },
                answer=answer,
                stops=self.stops,
                limits=limits,
                spent_s=spent_s,
                warn=self.print_line if trains else lambda _: None,
            )
            on_start(process)
            return process.run()
        except OSError as error:
            raise RunError(
                f"{run} cannot be trained in: {error.strerror or error}. Free some space or make "
                "the folder of the study writable, and run the same command again."
            ) from error

    def _wait_for(self, run: Path, limits: Limits) -> Ended | None:
        """Wait for the process of a worker that died, which saves; return how the job ends if not.

        One that hangs without the lock of the interpreter ends itself; another one does not.
        """
        started = time.monotonic()
        while is_locked(run):
            waited_s = time.monotonic() - started
            for limit_s, name in ((limits.trial_s, TRIAL_TIMEOUT), (limits.step_s, STEP_TIMEOUT)):
                if limit_s is not None and waited_s > limit_s:
                    shown = f"{format_duration(limit_s)} ({name})"
                    reason = f"waited for its run for {shown}, which {lock_owner(run)} uses"
                    return Ended(reason=reason, is_overdue=True)
            if self.stops.reason:
                return Ended(stopped=True)
            self.stops.wait(_LOCK_POLL_S)
        return None

    def _choose_threads(self, slot: Slot) -> int:
        """Return the threads of a training process: those of the study, if the cores suffice."""
        settings = self.study.settings
        available = share_threads(slot.count_workers(), settings.nproc)
        if available >= settings.threads:
            return settings.threads
        if not self._is_lowered:
            self._is_lowered = True
            self.print_line(
                f"More workers share the cores: trials have {available} threads each from now on, "
                f"instead of {settings.threads}. The last digits of their results may differ."
            )
        return available


def describe_row(row: TrialRow, study: SearchStudy) -> str:
    """Return a line about a trial: number, state, values, reason and params."""
    parts = [f"Trial {row.number} {row.state}"]
    if row.values is not None:
        names = [name for name, _ in study.settings.objectives]
        parts += [f"{n} {v:.6g}" for n, v in zip(names, row.values, strict=True)]
    if row.reason:
        parts.append(one_line(row.reason))
    parts += [f"{name}={format_value(value)}" for name, value in row.params.items()]
    return "  ".join(parts)


def best_rows(rows: list[TrialRow], study: SearchStudy) -> list[TrialRow]:
    """Return the finished trials that were trained and violate no constraint, best first.

    With several objectives, those that none beats.
    """
    objectives = study.settings.objectives
    rows = [row for row in rows if row.same_as is None and row.is_feasible]
    if study.settings.is_multi_objective:
        front = set(find_best(rows, objectives))
        return [row for row in rows if row.number in front]
    sign = 1.0 if objectives[0][1] == "min" else -1.0
    done = [(sign * row.values[0], row.number, row) for row in rows if row.values is not None]
    return [row for _, _, row in sorted(done)]


def delete_checkpoints(study: SearchStudy, rows: list[TrialRow], kept: Collection[int]) -> None:
    """Delete the checkpoints of the trials that ended, except those with the numbers `kept`.

    Args:
        study: of the trials.
        rows: from which the numbers were chosen; a trial that ended since then may be better.
        kept: numbers of trials.
    """
    for row in rows:
        if row.number in kept or row.run is None or row.state in ("running", "waiting"):
            continue
        delete_checkpoints_of(study.folder / TRIALS / row.run)


def delete_checkpoints_of(run: Path) -> None:
    """Delete the checkpoints of a run, unless a process uses it."""
    with suppress(OSError, RunError):
        found = list((run / "checkpoints").glob("step-*"))
        if not found:
            return
        lock = RunLock(run)
        try:
            for folder in found:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            lock.release()
