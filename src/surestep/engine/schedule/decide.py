"""From the options that were chosen to the shape of the schedule, lengths in steps."""

from collections.abc import Mapping
from typing import Any

from surestep.base.groups.schedule import StageText, read_stage
from surestep.engine.plan import Known
from surestep.engine.schedule.catalog import CATALOG, NOT_IN_STAGES
from surestep.engine.schedule.curves import LENGTHS
from surestep.engine.schedule.shape import Shape, Stage

# What every schedule has, or what is no matter of its curve.
_OF_ALL = (
    *("warmup", "warmup_start", "every", "min_lr", "min_lr_ratio", "floor", "save_cycles"),
    *("cycle_momentum", "base_momentum", "max_momentum", "final_div_factor", "chain"),
)
_TIMESCALE = 10_000.0  # Source: transformers.get_inverse_sqrt_schedule, without warm-up


def shape_of(k: Known) -> Shape:
    """Return the schedule that was chosen."""
    name: str = k["schedule.name"]
    takes = CATALOG[name].takes
    values = {option: k[f"schedule.{option}"] for option in takes}
    every = k.steps(values["every"]) if "every" in takes else 1.0
    warmup = warmup_of(k)
    return Shape(
        name=name,
        total=k["total_steps"],
        warmup=warmup,
        warmup_start=values.get("warmup_start"),
        min_lr_ratio=values.get("min_lr_ratio") or 0.0,
        floor=values.get("floor", "scale"),
        every=every,
        own=_own(k, values, warmup),
        momentum=(values["base_momentum"], values["max_momentum"])
        if values.get("cycle_momentum")
        else None,
        save_cycles=bool(values.get("save_cycles")),
        stages=stages_of(k, every) if name == "chain" else (),
    )


def warmup_of(k: Known) -> float:
    """Return the length of the warm-up in optimizer steps."""
    text: str | None = k["schedule.warmup"]
    return k.length(text) if text is not None else 0.0


def _own(k: Known, values: Mapping[str, Any], warmup: float) -> dict[str, Any]:
    """Return the options of the curve alone, lengths in steps, what was left open filled in."""
    own = {option: value for option, value in values.items() if option not in _OF_ALL}
    for option in LENGTHS:
        if own.get(option) is not None:
            own[option] = k.length(own[option])
    if "milestones" in own:
        own["milestones"] = tuple(map(k.length, own["milestones"]))
    if "timescale" in own and own["timescale"] is None:
        own["timescale"] = warmup or _TIMESCALE
    if "step_size_down" in own and own["step_size_down"] is None:
        own["step_size_down"] = own["step_size_up"]
    return own


def stages_of(k: Known, every: float) -> tuple[Stage, ...]:
    """Return the stages of a chain; the last one without a length takes what is left."""
    start, stages = 0.0, []
    rest = k["total_steps"] - warmup_of(k)
    for stage in map(read_stage, k["schedule.chain"]):
        length = k.length(stage.length) if stage.length else rest - start
        stages.append(Stage(start, stage.scale, _stage(k, stage, length, every)))
        start += length
    return tuple(stages)


def _stage(k: Known, stage: StageText, length: float, every: float) -> Shape:
    if stage.name == "warmup":
        start = stage.said.get("warmup_start")
        return Shape("warmup", length, every=every, own={"start": start})
    takes = {
        option: default.value
        for option, default in CATALOG[stage.name].takes.items()
        if option not in NOT_IN_STAGES
    }
    values = {**takes, **stage.said}
    return Shape(
        name=stage.name,
        total=length,
        min_lr_ratio=values.get("min_lr_ratio") or 0.0,
        floor=values.get("floor", "scale"),
        every=every,
        own=_own(k, values, 0.0),
    )
