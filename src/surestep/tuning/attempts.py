"""Attempts at a trial: each is a trial of Optuna's, and one of them counts.

There are several if workers die or stop. The user attributes "number" and "attempt" identify them.
If two workers create the same attempt at the same time, the one with the lower number of Optuna's
counts, for all.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, TrialState

_OF_PRUNER = "completed_rung_"


def current_attempts(trials: Iterable[FrozenTrial]) -> dict[int, FrozenTrial]:
    """Return the attempt that counts of each trial: the last one, and the first of equal ones."""
    found: dict[int, FrozenTrial] = {}
    for trial in trials:
        number, attempt = trial.user_attrs.get("number"), trial.user_attrs.get("attempt", 0)
        if number is None:  # another program added it
            continue
        known = found.get(number)
        if known is None or known.user_attrs["attempt"] < attempt:
            found[number] = trial
    return dict(sorted(found.items()))


def added_trials(trials: Iterable[FrozenTrial]) -> dict[int, FrozenTrial]:
    """Return the trials of another study, by their number there."""
    found = {t.user_attrs["from"]["number"]: t for t in trials if t.user_attrs.get("from")}
    return dict(sorted(found.items()))


def is_lost(trial: FrozenTrial) -> bool:
    """Whether an attempt ended without a result, so that another one follows."""
    return trial.state.name == "FAIL" and trial.user_attrs.get("lost") is not None


def sampler_attrs(trial: FrozenTrial) -> dict[str, Any]:
    """Return what the next attempt takes over: the values that were chosen, and how they were.

    cmaes learns only from trials with the attributes that it gave them. Those of a pruner are left
    out: the next attempt reports its evaluations again.
    """
    attrs = {
        name: value for name, value in trial.system_attrs.items() if not name.startswith(_OF_PRUNER)
    }
    return {**attrs, "fixed_params": trial.params} if trial.params else attrs


class CurrentAttempts:
    """A storage as the samplers and the pruners see it: one trial with its number for each trial.

    They would count the evaluations of a trial that was resumed twice, and hyperband takes the
    bracket of a trial from its number. The trials of another study come first.

    Args:
        storage: has all attempts.
        added: how many trials of another study it has.
    """

    def __init__(self, storage: BaseStorage, added: int = 0) -> None:
        self._storage = storage
        self._added = added

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial by the id of its attempt."""
        return self._renumber(self._storage.get_trial(trial_id))

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials of a study, by number."""
        every = self._storage.get_all_trials(study_id, deepcopy=False)
        added = [_with_number(trial, at) for at, trial in enumerate(added_trials(every).values())]
        own = [self._renumber(trial) for trial in current_attempts(every).values()]
        kept = [trial for trial in (*added, *own) if states is None or trial.state in states]
        return copy.deepcopy(kept) if deepcopy else kept

    def _renumber(self, trial: FrozenTrial) -> FrozenTrial:
        number = trial.user_attrs.get("number")
        return trial if number is None else _with_number(trial, number + self._added)


def _with_number(trial: FrozenTrial, number: int) -> FrozenTrial:
    if number != trial.number:
        trial = copy.copy(trial)  # the storage may have it in its cache
        trial.number = number
    return trial
