"""How a longer run keeps its curve: a chain of that curve and of the rate it ends with."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surestep.base.errors import SurestepError
from surestep.config.config import Config
from surestep.config.duration import format_number
from surestep.engine.plan.plan import Plan
from surestep.engine.schedule.curves import LENGTHS
from surestep.engine.schedule.registry import CATALOG, NOT_IN_STAGES
from surestep.engine.schedule.spec import ScheduleSpec
from surestep.engine.state.state import Progress
from surestep.trainer.extend import differences, plan_before, planned_lr
from surestep.trainer.planning import PreparedTask

_GROUP = "schedule."


def how_to_hold(
    before: Mapping[str, Any], planned: PreparedTask, place: Progress, allow: Sequence[str]
) -> str:
    """Say what to type to go on by the old curve; nothing where no chain has it bit for bit.

    Args:
        before: what the run was last gone on with.
        planned: what is asked now.
        place: where the run stands.
        allow: what else differs, and must be allowed.
    """
    old = plan_before(before, planned)
    if old is None or planned.plan.optimizers or planned.task.schedule is not None:
        return ""
    chain = _chain(old, planned.plan)
    said = planned.config.set_options()
    left_out = [name for name in said if name.startswith(_GROUP) and not _is_taken(name)]
    kept = {name: value for name, value in said.items() if name not in left_out}
    try:
        plan = planned.decide(Config.from_options({**kept, **chain}))
    except SurestepError:
        return ""
    if differences("", old, plan, None, place.steps_taken):
        return ""
    words = " ".join(f"--{name} {_typed(value)}" for name, value in chain.items())
    without = f", without {', '.join(left_out)}" if left_out else ""
    allowed = ("schedule", *allow)
    return (
        f" Or keep the curve and then hold the rate it ends with, or another by another scale: "
        f"{words} --allow {','.join(allowed)}{without} (the same options in Python, and "
        f"allow={allowed!r})."
    )


def _is_taken(name: str) -> bool:
    option = name.removeprefix(_GROUP)
    return option == "name" or option in CATALOG["chain"].takes


def _chain(old: Plan, now: Plan) -> dict[str, Any]:
    """Return the options of a chain that is the old schedule and then stands still."""
    shape = old.schedule
    found: dict[str, Any] = {"schedule.name": "chain"}
    if shape.warmup != now.schedule.warmup:
        found["schedule.warmup"] = f"{format_number(shape.warmup)} steps"
    first = " ".join(
        [shape.name, f"{format_number(shape.total - shape.warmup)} steps", *_options(shape)]
    )
    end = planned_lr(old, None)(int(shape.total) - 1)
    return {**found, "schedule.chain": (first, f"constant scale={end:.3g}")}


def _options(shape: ScheduleSpec) -> Iterator[str]:
    """Yield the options of a stage that is this schedule without its warm-up."""
    values = {
        "min_lr_ratio": shape.min_lr_ratio,
        "min_lr_mode": shape.min_lr_mode,
        **shape.curve_options,
    }
    for name, default in CATALOG[shape.name].takes.items():
        value = values.get(name)
        if name not in NOT_IN_STAGES and value not in (None, default.value):
            yield f"{name}={format_number(value)}steps" if name in LENGTHS else f"{name}={value}"


def _typed(value: str | tuple[str, ...]) -> str:
    return shlex.join([value] if isinstance(value, str) else value)
