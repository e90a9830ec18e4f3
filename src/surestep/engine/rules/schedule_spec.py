"""From the options that were chosen to the shape of the schedule, lengths in steps."""

from collections.abc import Mapping
from typing import Any

from surestep.config.schedule import StageSpec, parse_stage
from surestep.engine.plan.plan import PlanContext
from surestep.engine.schedule.curves import LENGTHS
from surestep.engine.schedule.registry import CATALOG, NOT_IN_STAGES
from surestep.engine.schedule.spec import ScheduleSpec, ScheduleStage

# What every schedule has, or what is no matter of its curve.
_OF_ALL = (
    *("warmup", "warmup_start", "interval", "min_lr", "min_lr_ratio", "min_lr_mode", "save_cycles"),
    *("cycle_momentum", "base_momentum", "max_momentum", "final_div_factor", "chain"),
)
_TIMESCALE = 10_000.0  # Source: transformers.get_inverse_sqrt_schedule, without warm-up


def make_schedule_spec(k: PlanContext) -> ScheduleSpec:
    """Return the schedule that was chosen."""
    name: str = k["schedule.name"]
    takes = CATALOG[name].takes
    values = {option: k[f"schedule.{option}"] for option in takes}
    every = k.steps(values["interval"]) if "interval" in takes else 1.0
    warmup = warmup_steps(k)
    return ScheduleSpec(
        name=name,
        total=k["total_steps"],
        warmup=warmup,
        warmup_start=values.get("warmup_start"),
        min_lr_ratio=values.get("min_lr_ratio") or 0.0,
        min_lr_mode=values.get("min_lr_mode", "scale"),
        interval=every,
        curve_options=_own(k, values, warmup),
        momentum=(values["base_momentum"], values["max_momentum"])
        if values.get("cycle_momentum")
        else None,
        save_cycles=bool(values.get("save_cycles")),
        stages=chain_stages(k, every) if name == "chain" else (),
    )


def warmup_steps(k: PlanContext) -> float:
    """Return the length of the warm-up in optimizer steps."""
    text: str | None = k["schedule.warmup"]
    return k.length_in_steps(text) if text is not None else 0.0


def _own(k: PlanContext, values: Mapping[str, Any], warmup: float) -> dict[str, Any]:
    """Return the options of the curve alone, lengths in steps, what was left open filled in."""
    own = {option: value for option, value in values.items() if option not in _OF_ALL}
    for option in LENGTHS:
        if own.get(option) is not None:
            own[option] = k.length_in_steps(own[option])
    if "milestones" in own:
        own["milestones"] = tuple(map(k.length_in_steps, own["milestones"]))
    if "timescale" in own and own["timescale"] is None:
        own["timescale"] = warmup or _TIMESCALE
    if "step_size_down" in own and own["step_size_down"] is None:
        own["step_size_down"] = own["step_size_up"]
    return own


def chain_stages(k: PlanContext, every: float) -> tuple[ScheduleStage, ...]:
    """Return the stages of a chain; the last one without a length takes what is left."""
    start, stages = 0.0, []
    rest = k["total_steps"] - warmup_steps(k)
    for stage in map(parse_stage, k["schedule.chain"]):
        length = k.length_in_steps(stage.length) if stage.length else rest - start
        stages.append(ScheduleStage(start, stage.scale, _stage(k, stage, length, every)))
        start += length
    return tuple(stages)


def _stage(k: PlanContext, stage: StageSpec, length: float, every: float) -> ScheduleSpec:
    if stage.name == "warmup":
        start = stage.options.get("warmup_start")
        return ScheduleSpec("warmup", length, interval=every, curve_options={"start": start})
    takes = {
        option: default.value
        for option, default in CATALOG[stage.name].takes.items()
        if option not in NOT_IN_STAGES
    }
    values = {**takes, **stage.options}
    return ScheduleSpec(
        name=stage.name,
        total=length,
        min_lr_ratio=values.get("min_lr_ratio") or 0.0,
        min_lr_mode=values.get("min_lr_mode", "scale"),
        interval=every,
        curve_options=_own(k, values, 0.0),
    )
