"""How much each parameter of a study matters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import create_trial

from surestep.tuning.table import IMPORTANCE_TRIALS, is_pruned_with_value

if TYPE_CHECKING:
    from surestep.tuning.rows import TrialRow
    from surestep.tuning.space import Space

TOP_TRIALS = 5  # that the importances compare with the rest: what Optuna recommends


def compute_importances(
    rows: Sequence[TrialRow], objectives: Sequence[tuple[str, str]], space: Space
) -> dict[str, dict[str, float]]:
    """Return the importance of every parameter for every objective, largest first.

    PED-ANOVA compares the parameters of the best trials (a tenth of them, but at least 5) with
    those of all. It draws no random numbers, and needs no other package. Pruned trials count with
    their last values: without them, a parameter whose bad values are pruned has no importance.

    Args:
        rows: the trials.
        objectives: names, with "min" or "max".
        space: what was searched.

    Returns:
        Shares that sum to 1, by parameter, by objective. An objective is missing if fewer than 10
        trials have a value, or if nothing distinguishes the best.
    """
    found = {}
    with _quiet():
        for index, (name, direction) in enumerate(objectives):
            view = optuna.create_study(direction="maximize" if direction == "max" else "minimize")
            for row in rows:
                value = _read_value(row, index, with_pruned=len(objectives) == 1)
                if value is not None:
                    active = space.active(row.params).values()
                    trial = create_trial(
                        value=value,
                        params=space.stored(row.params),
                        distributions={one.key: one.distribution() for one in active},
                    )
                    view.add_trial(trial)
            if (shares := _weigh_parameters(view)) is not None:
                found[name] = shares
    return found


def _read_value(row: TrialRow, index: int, *, with_pruned: bool) -> float | None:
    """Return the value of a finished trial, or the last one of a pruned trial."""
    if row.state == "finished" and row.values and all(map(math.isfinite, row.values)):
        return row.values[index]
    is_counted = with_pruned and is_pruned_with_value(row)
    return row.intermediate[max(row.intermediate)] if is_counted else None


def _weigh_parameters(view: optuna.Study) -> dict[str, float] | None:
    """Return the importances of a study with one objective, or None if it has too few trials."""
    trials = view.get_trials(deepcopy=False)
    if len(trials) < IMPORTANCE_TRIALS or not any(trial.params for trial in trials):
        return None
    share = min(0.5, max(0.1, TOP_TRIALS / len(trials)))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
    shares = optuna.importance.get_param_importances(view, evaluator=evaluator, normalize=True)
    usable = all(math.isfinite(share) for share in shares.values()) and sum(shares.values()) > 0
    return shares if usable and len({trial.value for trial in trials}) > 1 else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from printing the studies in memory, and warnings about few trials."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)
