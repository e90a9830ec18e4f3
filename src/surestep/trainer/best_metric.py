"""What an evaluation changes: how the run stands, and the rate that goes by it."""

from collections.abc import Iterator

from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import Progress, State
from surestep.engine.value import Value, number


def update_best(plan: Plan, state: State, metrics: dict[str, Value], lr: float) -> Iterator[str]:
    """Take in the metrics of an evaluation; yield what there is to say about them.

    Args:
        plan: by which metric, and whether the rate falls on a plateau.
        state: whose standing and plateau move.
        metrics: by "set/metric".
        lr: the peak rate.
    """
    metric, shape = plan.validation_metric, plan.schedule
    if metric is None:
        return
    state.best.metric, value = metric, number(metrics[metric])
    if value != value:
        yield f"{metric} is not a number; look at the validation data and the loss."
    state.best.update(
        value,
        state.progress.step,
        mode=plan.validation_mode,
        delta=plan.early_stop_min_delta,
        counts=_is_after_start(plan, state.progress),
    )
    if shape.name == "reduce_on_plateau" and state.plateau.update(
        value,
        shape.curve_options,
        mode=plan.validation_mode,
        min_lr_ratio=shape.min_lr_ratio,
        lr=lr,
    ):
        left = state.plateau.scale
        yield f"{metric} is on a plateau: the rate falls to {left:.4g} of its peak."


def _is_after_start(plan: Plan, place: Progress) -> bool:
    """Return whether an evaluation at this place counts for early stopping."""
    start = plan.early_stop_start
    if start is None:
        return True
    if start.unit == "epochs" and plan.steps_per_epoch is None:
        return bool(place.epoch > start.amount)
    return bool(place.step > start.steps(plan.steps_per_epoch))


def reset_best(plan: Plan, state: State) -> None:
    """Let the best so far be what this very step measured, where it did.

    Args:
        plan: by which metric.
        state: loaded, with a standing that another metric or another folder told.
    """
    metric, standing, step = plan.validation_metric, state.best, state.progress.step
    standing.reset()
    if metric is None or standing.latest_step != step or metric not in standing.latest:
        return
    standing.metric, value = metric, number(standing.latest[metric])
    standing.update(value, step, mode=plan.validation_mode, delta=0.0)
    standing.since_best = 0
