"""Resuming with another length: whether the steps so far would have been the same.

The schedule and the average are functions of the steps taken, and some of the total length. If both
lengths give the same values up to now, the run resumes as if it had always had the new length.
"""

from collections.abc import Mapping
from typing import Any

from surestep.base.errors import SurestepError
from surestep.config.config import LENGTHS, Config
from surestep.config.option import ResumeEffect, blocked, incompatible, safe
from surestep.engine.plan.plan import Plan
from surestep.engine.schedule.lr import PlateauState, make_lr_factor, momentum
from surestep.engine.schedule.registry import Factor, UserFunction
from surestep.engine.state.average import with_swa_lr
from surestep.engine.state.state import Progress
from surestep.trainer.config_diff import ConfigChange, resume_effect
from surestep.trainer.planning import PreparedTask

_COMPARED_STEPS = 10_000  # two schedules are compared at each step, or at this many


def compare_length(
    before: Mapping[str, Any], planned: PreparedTask, progress: Progress
) -> ConfigChange | None:
    """Return the change of the run's length and its effect; None if the length is the same.

    Args:
        before: the identity of the run.
        planned: what it would resume with.
        progress: where it would resume.
    """
    set_before, set_now = before["config"], planned.config.set_options()
    old, new = before.get("decided", {}).get("total_steps"), planned.plan.total_steps
    if progress.step > new:
        effect = incompatible(f"it is at step {progress.step} already")
    elif old in (None, new) or all(set_before.get(n) == set_now.get(n) for n in LENGTHS):
        return None
    else:
        effect = _length_effect(before, planned, progress.steps_taken)
    name = next((option for option in LENGTHS if option in set_now), "epochs")
    return ConfigChange(name, _length(set_before, old), _length(set_now, new), effect, name)


def _length(options: Mapping[str, Any], steps: int | None) -> str:
    epochs = options.get("epochs")
    of = "" if epochs is None else f"{epochs:g} epoch{'' if epochs == 1 else 's'}, "
    return f"{of}{'?' if steps is None else steps} steps"


def _length_effect(before: Mapping[str, Any], planned: PreparedTask, taken: int) -> ResumeEffect:
    """Compare the schedule and the average up to now under both lengths."""
    # Options of ranks, devices and records do not act on a schedule, and may not fit this process.
    kept = {
        name: value
        for name, value in before["config"].items()
        if resume_effect(name).effect == "blocked" and not name.startswith("parallel.")
    }
    try:
        plan = planned.decide(Config.from_options(kept))
    except SurestepError:
        return blocked("what the old length did to the schedule is not known")
    pairs = {"": (plan, planned.plan)}
    if planned.plan.optimizers:
        pairs = {f" of {n}": (plan.optimizers[n], p) for n, p in planned.plan.optimizers.items()}
    reasons = [
        reason
        for optimizer, (old, new) in pairs.items()
        for reason in _differences(optimizer, old, new, planned.task.schedule, taken)
    ]
    if reasons:
        return blocked("; ".join(reasons))
    return safe("so far the learning rate does not depend on the length of the run")


def _differences(
    optimizer: str, old: Plan, new: Plan, custom: UserFunction | None, taken: int
) -> list[str]:
    """Return what would have been different in the steps so far, with numbers."""
    rates = _lr_factor(old, custom), _lr_factor(new, custom)
    reasons = []
    if not (
        _alike(*rates, taken) and _alike(momentum(old.schedule), momentum(new.schedule), taken)
    ):
        was = rates[0](max(0, taken - 1))
        reasons.append(
            f"the learning rate{optimizer} by {new.schedule.name} depends on the length: at step "
            f"{taken} it was {_shown(was, old.optim_lr)}, and it would continue at "
            f"{_shown(rates[1](taken), new.optim_lr)}"
        )
    starts = old.average.start, new.average.start
    if old.average != new.average and taken > min(starts):
        reasons.append(
            f"the average{optimizer} started at step {starts[0]}, and would start at step "
            f"{starts[1]}"
        )
    return reasons


def _lr_factor(plan: Plan, custom: UserFunction | None) -> Factor:
    """Return the factor on the peak learning rate as a function of the steps taken."""
    factor = make_lr_factor(plan.schedule, PlateauState(), custom)
    return with_swa_lr(factor, plan.average, plan.optim_lr or 1.0)


def _alike(old: Factor | None, new: Factor | None, taken: int) -> bool:
    if old is None or new is None:
        return old is new
    stride = max(1, taken // _COMPARED_STEPS)
    return all(old(step) == new(step) for step in (*range(0, taken, stride), max(0, taken - 1)))


def _shown(factor: float, lr: float | None) -> str:
    return f"{factor:.3g} of the peak" if lr is None else f"{factor * lr:.3g}"
