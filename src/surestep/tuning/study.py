"""A study: claim, report and finish its trials, from any number of workers and machines.

Optuna stores the trials: one of Optuna's for each attempt; see `attempts`.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from surestep.base.errors import RunError
from surestep.base.processes import is_running
from surestep.record.checkpoint.discovery import list_checkpoints, step_of
from surestep.tuning.attempts import (
    CurrentAttempts,
    added_trials,
    current_attempts,
    is_lost,
    sampler_attrs,
)
from surestep.tuning.constraints import describe_violations
from surestep.tuning.rows import ClaimedTrial, Observer, TrialRow, TrialState
from surestep.tuning.samplers import make_pruner, make_sampler, quiet
from surestep.tuning.settings import StudySettings, read_settings
from surestep.tuning.storage import JOURNAL, Outage, persist, persist_while_up, require_optuna

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

MOST_RETRIES = 3  # without progress
TRIALS = "trials"  # the folder of their runs
WORKER_DIED = "its worker died"
_STATES: Mapping[str, TrialState] = {
    "COMPLETE": "finished",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}


class SearchStudy:
    """A study that is open; see `open_study` and `read_study` in `open`.

    Attributes:
        folder: of the study.
        settings: what `study.json` records; `trials` there may have grown since.
    """

    def __init__(
        self, folder: Path, settings: StudySettings, storage: BaseStorage, *, create: bool
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.outage = Outage()
        self._storage = storage
        self._beats: dict[int, int] = {}  # heartbeats by trial_id
        self._pruners: dict[int, BasePruner] = {}  # by the number of evaluations of a trial
        added = len((settings.warm_start or {"numbers": ()})["numbers"])
        self._view = cast("BaseStorage", CurrentAttempts(storage, added))
        optuna = require_optuna()
        directions = ["maximize" if way == "max" else "minimize" for _, way in settings.objectives]
        shared: dict[str, Any] = {
            "storage": self._view,
            "study_name": settings.name,
            "sampler": optuna.samplers.RandomSampler(seed=0),  # `claim_trial` makes the one used
            "pruner": optuna.pruners.NopPruner(),  # `report` makes the one that prunes
        }
        self._study: Study
        runs = {path.name for path in (folder / TRIALS).glob("[0-9]*/")}  # before the records
        try:
            self._study = optuna.load_study(**shared)
        except KeyError:
            self._require_records(runs)
            if not create:
                text = f"{folder} has no trials yet: its storage has no such study."
                raise RunError(text) from None
            self._study = optuna.create_study(directions=directions, load_if_exists=True, **shared)
        self._require_records(runs - {_run_name(number) for number in self._current()})

    @persist
    def added_numbers(self) -> set[int]:
        """Return the numbers of the trials of another study that were added."""
        return set(added_trials(self._storage.get_all_trials(self._study._study_id)))

    @persist
    def add_trial(self, trial: FrozenTrial) -> None:
        """Add a trial of another study, which has the user attribute "from"."""
        self._study.add_trial(trial)

    def _require_records(self, lost: set[str]) -> None:
        """Raise an error if trials have a run and no record, which is written before the run."""
        if lost:
            place = self.settings.storage or self.folder / JOURNAL
            raise RunError(
                f"{place} has no record of trial {min(lost)}, and {self.folder / TRIALS} has its "
                "run. Put a copy of it back, or start a new study: surestep search RECIPE --study "
                "FOLDER"
            )

    @property
    def trials(self) -> int:
        """The whole number of trials; it is read again, since another command may raise it."""
        return read_settings(self.folder).trials

    @persist
    def claim_trial(self) -> ClaimedTrial | None:
        """Take the next trial: one that is to be resumed, or a new one.

        Returns:
            The trial, which is then running; None if the whole number is taken.
        """
        while True:
            current = self._current()
            numbers = (n for n in range(self.trials) if self._is_free(current.get(n)))
            number = next(numbers, None)
            if number is None:
                return None
            found = current.get(number)
            if found is None or found.state.name != "WAITING":
                self._add_attempt(number, found)
            elif self._set_state(found._trial_id, "RUNNING"):
                return self._start(number, found)

    @staticmethod
    def _is_free(trial: FrozenTrial | None) -> bool:
        return trial is None or trial.state.name == "WAITING" or is_lost(trial)

    def _add_attempt(self, number: int, before: FrozenTrial | None) -> None:
        """Add the first or next attempt at a trial; another worker may do the same."""
        step = self._newest_step(number)
        attrs = {"number": number, "attempt": 0, "deaths": 0, "step": step, "seconds": 0.0}
        of_sampler: Mapping[str, Any] = {}
        enqueued = self.settings.enqueued[number : number + 1]
        if before is None and enqueued:  # as Study.enqueue_trial
            of_sampler = {"fixed_params": self.settings.space.stored(enqueued[0])}
        if before is not None:
            attrs["attempt"] = before.user_attrs["attempt"] + 1
            lost = before.user_attrs["lost"]
            attrs["seconds"] = lost.get("seconds") or before.user_attrs.get("seconds", 0.0)
            if step <= before.user_attrs.get("step", 0):
                attrs["deaths"] = before.user_attrs["deaths"] + int(lost["died"])
            of_sampler = sampler_attrs(before)
        trial = require_optuna().trial
        waiting = trial.TrialState.WAITING
        self._study.add_trial(
            trial.create_trial(state=waiting, user_attrs=attrs, system_attrs=of_sampler)
        )

    def _start(self, number: int, found: FrozenTrial) -> ClaimedTrial:
        """Let the sampler of this number choose the values."""
        optuna, settings = require_optuna(), self.settings
        with quiet():
            sampler = make_sampler(
                settings.sampler, settings.space, settings.seed, number, settings.enqueued
            )
            study = optuna.load_study(  # a new one, since a Study caches the trials
                study_name=settings.name,
                storage=self._view,
                sampler=sampler,
                pruner=make_pruner(settings.pruner),
            )
            params = settings.space.suggest(optuna.trial.Trial(study, found._trial_id))
        worker = {"host": socket.gethostname(), "pid": os.getpid()}
        self._set_attr(found._trial_id, "worker", worker)
        return replace(self._claimed(found), params=params)

    @persist_while_up
    def beat(self, trial: ClaimedTrial) -> bool:
        """Record a heartbeat; return False if the trial was taken from this worker."""
        self._beats[trial.trial_id] = count = self._beats.get(trial.trial_id, 0) + 1
        return self._set_attr(trial.trial_id, "heartbeat", count)

    @persist
    def stale_trials(self, observer: Observer) -> list[ClaimedTrial]:
        """Return the running trials whose worker died, as far as the observer has seen."""
        running = [t for t in self._current().values() if t.state.name == "RUNNING"]
        return [
            self._claimed(trial)
            for trial in running
            if observer.is_stale(trial._trial_id, trial.user_attrs.get("heartbeat"))
        ]

    @persist
    def retry(
        self, trial: ClaimedTrial, reason: str = WORKER_DIED, seconds: float | None = None
    ) -> bool:
        """End an attempt whose worker died, so that `claim_trial` resumes the trial.

        After `MOST_RETRIES` retries without a new checkpoint the trial fails instead.

        Returns:
            Whether this worker ended it; another one may be first.
        """
        if trial.retries >= MOST_RETRIES:
            step = self._frozen(trial).user_attrs.get("step", 0)
            if self._newest_step(trial.number) <= step:
                often = f"{reason} {MOST_RETRIES + 1} times without a new checkpoint"
                return self.fail(trial, often)
        return self._lose(trial, reason, seconds, died=True)

    @persist
    def hand_back(self, trial: ClaimedTrial, reason: str, seconds: float | None = None) -> bool:
        """End an attempt that was stopped, so that `claim_trial` resumes the trial.

        Returns:
            Whether it was still this worker's.
        """
        return self._lose(trial, reason, seconds, died=False)

    def _lose(self, trial: ClaimedTrial, reason: str, seconds: float | None, *, died: bool) -> bool:
        lost = {"reason": reason, "died": died, "seconds": seconds}
        return self._set_attr(trial.trial_id, "lost", lost) and self._set_state(
            trial.trial_id, "FAIL"
        )

    @persist_while_up
    def report(
        self, trial: ClaimedTrial, evaluation: int, value: float, evaluations: int = 0
    ) -> bool:
        """Record the first objective after an evaluation.

        Args:
            trial: that was evaluated.
            evaluation: its number in the run, from 1.
            value: of the objective.
            evaluations: how many the trial makes, for `warmup=auto`.

        Returns:
            Whether to prune the trial; never with several objectives.
        """
        try:
            self._storage.set_trial_intermediate_value(trial.trial_id, evaluation, value)
            if self.settings.is_multi_objective:
                return False
            if evaluations not in self._pruners:
                self._pruners[evaluations] = make_pruner(self.settings.pruner, evaluations)
            with quiet():
                return bool(self._pruners[evaluations].prune(self._study, self._frozen(trial)))
        except require_optuna().exceptions.UpdateFinishedTrialError:
            return False  # another worker took the trial

    @persist
    def finish(
        self,
        trial: ClaimedTrial,
        values: Sequence[float],
        seconds: float | None = None,
        measured: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        """End a trial with the values of its objectives; NaN fails it.

        Args:
            trial: that ended.
            values: of the objectives.
            seconds: how long its processes ran.
            measured: all that it measured, by name.

        Returns:
            Whether it was still this worker's.
        """
        names = [name for name, _ in self.settings.objectives]
        assert len(values) == len(names)
        for name, value in zip(names, values, strict=True):
            if math.isnan(value):
                return self.fail(trial, f"{name} is NaN", seconds)
        own = {**measured, **dict(zip(names, map(float, values), strict=True))}
        reason = describe_violations(self.settings.constraints, own)
        return self._end(trial, "COMPLETE", reason, seconds, [*map(float, values)], own)

    @persist
    def prune(
        self,
        trial: ClaimedTrial,
        reason: str,
        seconds: float | None = None,
        measured: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        """End a trial that the pruner stopped; return whether it was still this worker's."""
        frozen = self._frozen(trial)
        last = frozen.intermediate_values.get(frozen.last_step or 0, math.nan)
        values = None if math.isnan(last) or self.settings.is_multi_objective else [last]
        return self._end(trial, "PRUNED", reason, seconds, values, measured)

    @persist
    def answer(self, trial: ClaimedTrial) -> bool:
        """End a trial as the earlier one with the same values did, which it would repeat bitwise.

        One that failed is trained again: what failed may have been the machine.

        Returns:
            Whether there is such a trial.
        """
        params = self._frozen(trial).params
        for number, found in self._current().items():
            is_over = found.state.name in ("COMPLETE", "PRUNED")
            if number < trial.number and is_over and found.params == params:
                break
        else:
            return False
        for step, value in found.intermediate_values.items():
            self._storage.set_trial_intermediate_value(trial.trial_id, step, value)
        self._set_attr(trial.trial_id, "same_as", number)
        why = found.user_attrs["end"]["reason"]
        reason = f"same values as trial {number}{', ' if why else ''}{why}"
        measured = found.user_attrs.get("measured", {})
        return self._end(trial, found.state.name, reason, 0.0, found.values, measured)

    @persist
    def fail(self, trial: ClaimedTrial, reason: str, seconds: float | None = None) -> bool:
        """End a trial that failed; return whether it was still this worker's."""
        return self._end(trial, "FAIL", reason, seconds)

    def _end(
        self,
        trial: ClaimedTrial,
        state: str,
        reason: str,
        seconds: float | None,
        values: Sequence[float] | None = None,
        measured: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        end = {"reason": reason, "seconds": seconds}
        if measured and not self._record_measured(trial, measured):
            return False
        if state == "FAIL":  # `lost` is there if a worker died while it handed the trial back
            self._set_attr(trial.trial_id, "lost", None)
        return self._set_attr(trial.trial_id, "end", end) and self._set_state(
            trial.trial_id, state, values
        )

    def _record_measured(self, trial: ClaimedTrial, measured: Mapping[str, float]) -> bool:
        """Record what a trial measured, and Optuna's constraints; return False if it is over."""
        if not self._set_attr(trial.trial_id, "measured", dict(measured)):
            return False
        optuna = require_optuna()
        try:
            for one in self.settings.constraints:
                made = optuna.trial.Trial(self._study, trial.trial_id)
                made.set_constraint(one.text, one.measure_violation(measured))
        except optuna.exceptions.UpdateFinishedTrialError:
            return False
        return True

    @persist
    def rows(self) -> list[TrialRow]:
        """Return a row for each trial, by number."""
        return [self._row(number, trial) for number, trial in self._current().items()]

    def _row(self, number: int, trial: FrozenTrial) -> TrialRow:
        lost = is_lost(trial)
        state: TrialState = "waiting" if lost else _STATES[trial.state.name]
        stored = trial.params or trial.system_attrs.get("fixed_params", {})
        end = trial.user_attrs.get("lost" if lost else "end", {})
        if state == "running" and _is_dead(trial.user_attrs.get("worker")):
            state, end = "waiting", {"reason": WORKER_DIED}
        same_as = trial.user_attrs.get("same_as")
        has_run = same_as is None and (state != "waiting" or stored)
        return TrialRow(
            number=number,
            state=state,
            params=self.settings.space.values_of(stored),
            values=tuple(trial.values) if state == "finished" and trial.values else None,
            intermediate=dict(sorted(trial.intermediate_values.items())),
            seconds=end.get("seconds"),
            evaluations=len(trial.intermediate_values) if same_as is None else 0,
            run=_run_name(number) if has_run else None,
            reason=str(end.get("reason", "")),
            same_as=same_as,
            measured=dict(trial.user_attrs.get("measured", {})),
            is_feasible=all(value <= 0 for value in trial.constraints.values()),
        )

    def _current(self) -> dict[int, FrozenTrial]:
        """Return the attempt that counts of each trial."""
        return current_attempts(self._storage.get_all_trials(self._study._study_id, deepcopy=False))

    def _newest_step(self, number: int) -> int:
        """Return the step of the newest checkpoint of a trial; 0 without one."""
        found = list_checkpoints(self.folder / TRIALS / _run_name(number) / "checkpoints")
        return step_of(found[-1]) if found else 0

    def _claimed(self, trial: FrozenTrial) -> ClaimedTrial:
        attrs = trial.user_attrs
        return ClaimedTrial(
            number=attrs["number"],
            params=self.settings.space.values_of(trial.params),
            run=_run_name(attrs["number"]),
            retries=int(attrs["deaths"]),
            trial_id=trial._trial_id,
            seconds=attrs.get("seconds", 0.0),
        )

    def _frozen(self, trial: ClaimedTrial) -> FrozenTrial:
        return self._view.get_trial(trial.trial_id)

    def _set_attr(self, trial_id: int, name: str, value: Any) -> bool:
        """Set an attribute of a trial; return False if the trial is over."""
        try:
            self._storage.set_trial_user_attr(trial_id, name, value)
        except require_optuna().exceptions.UpdateFinishedTrialError:
            return False
        return True

    def _set_state(self, trial_id: int, state: str, values: Sequence[float] | None = None) -> bool:
        """Set the state of a trial; return False if it is over or, for RUNNING, was taken."""
        optuna = require_optuna()
        try:
            return bool(
                self._storage.set_trial_state_values(
                    trial_id, optuna.trial.TrialState[state], values
                )
            )
        except optuna.exceptions.UpdateFinishedTrialError:
            return False


def _is_dead(worker: Mapping[str, Any] | None) -> bool:
    """Whether a worker is a process of this machine that has ended."""
    if worker is None or worker["host"] != socket.gethostname():
        return False
    return not is_running(worker["pid"])


def _run_name(number: int) -> str:
    return f"{number:04d}"
