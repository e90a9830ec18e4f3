"""A copy of a study in memory, for the functions of Optuna that draw and weigh parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from html import escape, unescape
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState, create_trial

from surestep.tuning.dimension import label_choices
from surestep.tuning.table import IMPORTANCE_TRIALS, is_pruned_with_value

if TYPE_CHECKING:
    from surestep.tuning.dimension import Dimension
    from surestep.tuning.rows import TrialRow
    from surestep.tuning.space import Space

Objectives = Sequence[tuple[str, str]]  # names, with "min" or "max"

TOP_TRIALS = 5  # that the importances compare with the rest: what Optuna recommends
_STATES = {
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "running": TrialState.RUNNING,
}


def make_view(
    rows: Sequence[TrialRow],
    objectives: Objectives,
    space: Space,
    value: int | None = None,
    *,
    with_pruned: bool = False,
    dotted: Collection[int] = (),
) -> optuna.Study:
    """Return a study in memory, in which names and choices are texts that are safe in HTML.

    Args:
        rows: the trials of the tables.
        objectives: the objectives of the study.
        space: what was searched.
        value: the study has only this value of each trial; None keeps all.
        with_pruned: pruned trials are complete, with their last value. Optuna's importances and
            plots ignore others.
        dotted: numbers of trials that violate a constraint, which `plot_parallel_coordinate` draws
            as dotted lines.
    """
    directions: list[Any] = [
        "maximize" if direction == "max" else "minimize" for _, direction in objectives
    ]
    view = optuna.create_study(directions=directions)
    by_number = {row.number: row for row in rows}
    is_constrained = bool(dotted) or not all(row.is_feasible for row in rows)
    dimensions = {dimension.key: _ViewDimension(dimension) for dimension in space.dimensions}
    for number in range(max(by_number, default=-1) + 1):
        row = by_number.get(number)
        if row is None or not _is_shown(row):
            # It keeps the numbers of the other trials; no plot shows a failed trial.
            view.add_trial(create_trial(state=TrialState.FAIL))
            continue
        values, state = None, _STATES[row.state]
        if row.state == "finished" and row.values is not None:
            values = list(row.values) if value is None else [row.values[value]]
        elif with_pruned and is_pruned_with_value(row):
            values, state = [row.intermediate[max(row.intermediate)]], TrialState.COMPLETE
        shown = [dimensions[one.key] for one in space.active(row.params).values()]
        intermediate = {
            at: reported for at, reported in row.intermediate.items() if math.isfinite(reported)
        }
        view.add_trial(
            create_trial(
                state=state,
                values=values,
                params={
                    dimension.name: dimension.label(row.params[dimension.source.name])
                    for dimension in shown
                },
                distributions={dimension.name: dimension.distribution for dimension in shown},
                intermediate_values=intermediate,
                constraints=_constrain(row, dotted, is_constrained),
            )
        )
    return view


def _constrain(
    row: TrialRow, dotted: Collection[int], is_constrained: bool
) -> dict[str, float] | None:
    """Return the constraint of a trial; all trials have one, or none."""
    if not is_constrained:
        return None
    return {"feasible": float(not row.is_feasible or row.number in dotted)}


def _is_shown(row: TrialRow) -> bool:
    return row.state in _STATES and all(map(math.isfinite, row.values or ()))


class _ViewDimension:
    """A dimension whose choices are texts, except numbers, which Optuna sorts."""

    def __init__(self, dimension: Dimension) -> None:
        self.source, self.name = dimension, escape_html(dimension.key)
        self._labels: list[str] | None = None
        self.distribution: BaseDistribution = dimension.distribution()
        if any(type(choice) not in (int, float) for choice in dimension.choices):
            self._labels = [escape_html(label) for label in label_choices(dimension)]
            self.distribution = CategoricalDistribution(self._labels)

    def label(self, value: Any) -> Any:
        """Return a value of the dimension as the plots show it."""
        return value if self._labels is None else self._labels[self.source.choices.index(value)]


def escape_html(text: str) -> str:
    """Escape what plotly would read as a tag; it does not know &quot;."""
    return escape(text, quote=False)


def finished_trials(view: optuna.Study) -> list[FrozenTrial]:
    """Return the complete trials of a view: the finished ones, and pruned ones if it has them."""
    return view.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from printing the studies in memory, and warnings about few trials."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def compute_importances(
    rows: Sequence[TrialRow], objectives: Objectives, space: Space
) -> dict[str, dict[str, float]]:
    """Return the importance of every parameter for every objective, largest first.

    PED-ANOVA compares the parameters of the best trials (a tenth of them, but at least 5) with
    those of all. It draws no random numbers, and needs no other package. Pruned trials count with
    their last values: without them, a parameter whose bad values are pruned has no importance.

    Returns:
        Shares that sum to 1, by parameter, by objective. An objective is missing if fewer than 10
        trials have a value, or if nothing distinguishes the best.
    """
    found = {}
    with quiet():
        for index, objective in enumerate(objectives):
            view = make_view(rows, [objective], space, index, with_pruned=len(objectives) == 1)
            if (shares := weigh_parameters(view)) is not None:
                found[objective[0]] = {unescape(name): share for name, share in shares.items()}
    return found


def weigh_parameters(view: optuna.Study) -> dict[str, float] | None:
    """Return the importances of a view with one objective, or None if it has too few trials."""
    trials = finished_trials(view)
    if len(trials) < IMPORTANCE_TRIALS or not any(trial.params for trial in trials):
        return None
    evaluator = make_evaluator(len(trials))
    shares = optuna.importance.get_param_importances(view, evaluator=evaluator, normalize=True)
    usable = all(math.isfinite(share) for share in shares.values()) and sum(shares.values()) > 0
    return shares if usable and len({trial.value for trial in trials}) > 1 else None


def make_evaluator(trials: int) -> PedAnovaImportanceEvaluator:
    """Return the evaluator for this number of trials."""
    return PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(0.1, TOP_TRIALS / trials)))
