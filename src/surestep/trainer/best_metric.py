"""What an evaluation changes: the best metric, the plateau schedule, and which weights stay."""

import json
import math
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError, TaskError, suggest_names
from surestep.engine.data.make_source import is_in_memory
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import Progress, State
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task
from surestep.engine.value import Value, number
from surestep.record.checkpoint.discovery import scan_checkpoints
from surestep.record.checkpoint.retention import best_first, best_steps
from surestep.trainer.rank_zero import run_on_rank_zero


def update_best(plan: Plan, state: State, metrics: dict[str, Value], lr: float) -> Iterator[str]:
    """Update the best metric and the plateau schedules by an evaluation; yield lines to print."""
    metric = plan.validation_metric
    if metric is None:
        return
    if metric not in metrics:  # of a metric that the first batch did not show
        raise TaskError(
            f"validation.metric={metric!r} is not what the metric returns. "
            f"{suggest_names(metric, metrics)}"
        )
    state.best.metric, value = metric, number(metrics[metric])
    if not math.isfinite(value):
        yield (
            f"{metric} is {value}, so this evaluation is not the best: check the validation data "
            "and the metric."
        )
    state.best.update(
        value,
        state.progress.step,
        mode=plan.validation_mode,
        delta=plan.early_stop_min_delta,
        counts=_is_after_start(plan, state.progress),
    )
    plateaus = [("", plan, state.plateau)]
    plateaus += [(f" of {name}", plan.optimizers[name], p) for name, p in state.plateaus.items()]
    for of, own, plateau in plateaus:
        schedule = own.schedule
        if schedule.name == "reduce_on_plateau" and plateau.update(
            value,
            schedule.curve_options,
            mode=plan.validation_mode,
            min_lr_ratio=schedule.min_lr_ratio,
            lr=own.optim_lr or lr,
        ):
            peak = f"{plateau.scale:.4g} of its peak"
            yield f"{metric} is on a plateau: the learning rate{of} falls to {peak}."


def _is_after_start(plan: Plan, progress: Progress) -> bool:
    """Return whether an evaluation counts for early stopping."""
    start = plan.early_stop_start
    if start is None:
        return True
    if start.unit == "epochs" and plan.steps_per_epoch is None:
        return (progress.epoch, progress.position) > (start.amount, 0)
    return bool(progress.step > start.steps(plan.steps_per_epoch))


def measure_on(plan: Plan, state: State, sets: Mapping[str, Any], task: Task) -> bool:
    """Note which samples the metric is measured on from now on; return if they are others so far.

    `sets` describes the validation sets, as the identity of the run.
    """
    split = str(plan.validation_metric).partition("/")[0]
    described = sets.get(split)
    if described is None:
        return False
    content = json.dumps([described, plan.limit_val_batches], sort_keys=True)
    if state.best.data is None and not is_in_memory(task.val_sets()[split], task):
        # Of a version with other seeds, by which samples may be drawn that are made when read.
        state.best.data = "not known"
    return state.best.measure_on(blake2b(content.encode(), digest_size=8).hexdigest())


def reset_best(plan: Plan, state: State) -> None:
    """Forget the best of another metric or another run, except what the current step measured."""
    metric, best, step = plan.validation_metric, state.best, state.progress.step
    best.reset()
    if metric is None or best.latest_step != step or metric not in best.latest:
        return
    best.metric, value = metric, number(best.latest[metric])
    best.update(value, step, mode=plan.validation_mode, delta=0.0)
    best.since_best = 0


class TopK:
    """The monitored metric of each evaluation: in the checkpoints on disk, and since then."""

    def __init__(self, loop: Loop, checkpoints: Path) -> None:
        self.values: dict[int, float] = {}  # by step
        self._loop = loop
        self._checkpoints = checkpoints
        self._n_rollbacks = len(loop.state.spikes.skipped_steps)
        if loop.plan.validation_metric is not None and loop.plan.checkpoint_keep_best:
            self.values = dict(run_on_rank_zero(loop.world, self._on_disk))

    def is_top_k(self) -> bool:
        """Add the evaluation of the current step; return if it is among the `keep_best`."""
        state, plan = self._loop.state, self._loop.plan
        step, metric = state.progress.step, plan.validation_metric
        if metric is None or not plan.checkpoint_keep_best:
            return False
        skipped = state.spikes.skipped_steps
        undone = min([step, *(first for first, _ in skipped[self._n_rollbacks :])])
        self._n_rollbacks = len(skipped)
        self.values = {at: value for at, value in self.values.items() if at < undone}
        self.values[step] = number(state.best.latest[metric])
        return step in best_steps(self.values, plan.validation_mode)[: plan.checkpoint_keep_best]

    def _on_disk(self) -> list[tuple[int, float]]:
        plan, metric = self._loop.plan, str(self._loop.plan.validation_metric)
        try:
            good = scan_checkpoints(self._checkpoints).good
        except CheckpointError:  # a save reports it; until then one checkpoint too many is saved
            return []
        ranked = best_first(good, metric, plan.validation_mode, self._loop.state.best.data)
        return [(saved.step, saved.metrics[metric]) for saved in ranked]
