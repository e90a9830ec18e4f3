"""What another length does to a run: to its schedule, and to the average of its weights.

Both are functions of the steps taken, and some of the length of the run too. Where they were the
same until now under both lengths, the run goes on as if it had always had the new one.
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
from surestep.trainer.config_diff import ConfigChange
from surestep.trainer.planning import PreparedTask
from surestep.trainer.resume_effects import resume_effect

LOOKED_AT = 10_000  # steps at which two schedules are compared; a run of so many is compared whole


def compare_length(
    before: Mapping[str, Any], planned: PreparedTask, place: Progress
) -> ConfigChange | None:
    """Return what another length means for a run that stands at `place`; None where it is the same.

    Args:
        before: what the run was last gone on with.
        planned: what is asked now.
        place: where the run stands.
    """
    old_total, total = before.get("decided", {}).get("total_steps"), planned.plan.total_steps
    if place.step > total:
        return _shortened(before, planned, place)
    said = planned.config.set_options()
    same = all(before["config"].get(name) == said.get(name) for name in LENGTHS)
    if old_total is None or old_total == total or same:
        return None
    name = next((each for each in LENGTHS if each in said), "epochs")
    old, now = _length(before["config"], old_total), _length(said, total)
    return ConfigChange(name, old, now, _length_effect(before, planned, place), name)


def _shortened(before: Mapping[str, Any], planned: PreparedTask, place: Progress) -> ConfigChange:
    said = planned.config.set_options()
    name = next((each for each in LENGTHS if each in said), "epochs")
    reason = f"it stands at step {place.step} already"
    old = _length(before["config"], before.get("decided", {}).get("total_steps"))
    now = _length(said, planned.plan.total_steps)
    return ConfigChange(name, old, now, incompatible(reason), name)


def _length(said: Mapping[str, Any], steps: int | None) -> str:
    epochs = said.get("epochs")
    of = "" if epochs is None else f"{epochs:g} epoch{'' if epochs == 1 else 's'}, "
    return f"{of}{'?' if steps is None else steps} steps"


def _length_effect(
    before: Mapping[str, Any], planned: PreparedTask, place: Progress
) -> ResumeEffect:
    """Compare what was until now with what the new length would have made of it."""
    old = plan_before(before, planned)
    if old is None:
        return blocked("what the old length did to the schedule is not known")
    said = [
        text
        for name, (a, b) in _pairs(old, planned.plan).items()
        for text in differences(name, a, b, planned.task.schedule, place.steps_taken)
    ]
    if said:
        return blocked("; ".join(said))
    return safe("until here the rate does not depend on the length of the run")


def plan_before(before: Mapping[str, Any], planned: PreparedTask) -> Plan | None:
    """Return the plan that the run was last gone on with; None where it cannot be made here."""
    try:
        return planned.decide(_of_the_updates(before["config"]))
    except SurestepError:
        return None


def _of_the_updates(said: Mapping[str, Any]) -> Config:
    """Leave out what was said of ranks, devices and the record.

    No rate hangs on it, and another machine or one process may not be able to keep it.
    """
    kept = (
        name
        for name in said
        if resume_effect(name).effect == "blocked" and not name.startswith("parallel.")
    )
    return Config.from_options({name: said[name] for name in kept})


def _pairs(old: Plan, new: Plan) -> dict[str, tuple[Plan, Plan]]:
    """Return the old and the new plan of each optimizer, by its name."""
    if not new.optimizers:
        return {"": (old, new)}
    return {name: (old.optimizers[name], each) for name, each in new.optimizers.items()}


def differences(
    optimizer: str, old: Plan, new: Plan, own: UserFunction | None, taken: int
) -> list[str]:
    """Say what was otherwise until now, in numbers; nothing where all was the same."""
    of = f" of {optimizer}" if optimizer else ""
    was, will = planned_lr(old, own), planned_lr(new, own)
    found = []
    if not _alike(was, will, taken) or not _alike(
        momentum(old.schedule), momentum(new.schedule), taken
    ):
        name, before = new.schedule.name, old.schedule.name
        why = "depends on the length" if name == before else f"is not that of {before} until now"
        found.append(
            f"the rate{of} by {name} {why}: at step {taken} it was "
            f"{_shown(was(max(0, taken - 1)), old.optim_lr)}, and it goes on at "
            f"{_shown(will(taken), new.optim_lr)}"
        )
    starts = old.average.start, new.average.start
    if old.average != new.average and taken > min(starts):
        found.append(
            f"the average{of} began at step {starts[0]} and would begin at step {starts[1]}: what "
            "it holds is "
            + ("left out" if taken <= starts[1] else "kept, but of other steps than it would be")
        )
    return found


def planned_lr(plan: Plan, own: UserFunction | None) -> Factor:
    """Return the factor on the peak rate by the steps taken, as a plan has it."""
    rate = make_lr_factor(plan.schedule, PlateauState(), own)
    return with_swa_lr(rate, plan.average, plan.optim_lr or 1.0)


def _alike(old: Factor | None, new: Factor | None, taken: int) -> bool:
    """Say whether two functions of the steps taken were the same until now."""
    if old is None or new is None:
        return old is new
    stride = max(1, taken // LOOKED_AT)
    return all(old(each) == new(each) for each in (*range(0, taken, stride), max(0, taken - 1)))


def _shown(factor: float, lr: float | None) -> str:
    return f"{factor:.3g} of the peak" if lr is None else f"{factor * lr:.3g}"
