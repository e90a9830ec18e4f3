"""The learning-rate schedule: options by its registry, and what they cannot be together."""

from collections.abc import Mapping
from typing import Any

from surestep.config.schedule import Schedule
from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.schedule.curves import LENGTHS
from surestep.engine.schedule.lr import cycle_ends, no_momentum_message
from surestep.engine.schedule.registry import OWN, ScheduleSpec, schedule_info

# Options that every schedule has, or that do not belong to its curve.
_NOT_OF_CURVE = (
    *("warmup", "warmup_start", "interval", "min_lr", "min_lr_ratio", "min_lr_mode", "save_cycles"),
    *("cycle_momentum", "base_momentum", "max_momentum", "final_div_factor"),
)
_TIMESCALE = 10_000.0  # Source: transformers.get_inverse_sqrt_schedule, without warm-up


@resolves("schedule.name")
def name(ctx: PlanContext) -> Decision:
    """Keep the learning rate constant, unless a schedule is set."""
    if ctx.task_info.own_schedule:
        foreign = [option for option in ctx.set_options if option.startswith("schedule.")]
        if foreign:
            ctx.reject(
                f"{foreign[0]} is set, but the Task brings its own schedule. Change that function, "
                "or leave Task(schedule=...) out."
            )
        return OWN, "the Task brings its schedule"
    if ctx.get("schedule.name") == "reduce_on_plateau" and not ctx.task_info.val_sets:
        ctx.reject(
            "schedule.name='reduce_on_plateau' needs evaluations. Pass Task(val=...), or use "
            "schedule.name='cosine'."
        )
    return ctx.set_or("constant", "not set: the learning rate is constant")


@resolves(*(f"schedule.{option}" for option in Schedule.model_fields if option != "name"))
def own_option(ctx: PlanContext) -> Decision:
    """Use the default of the schedule."""
    chosen, option = ctx["schedule.name"], ctx.option.removeprefix("schedule.")
    info = schedule_info(chosen)
    if option in info.needs and not ctx.is_set(ctx.option):
        ctx.reject(
            f"schedule.name={chosen!r} needs a {option}: set schedule.{option}="
            f"{info.needs[option]}."
        )
    if option == "min_lr_ratio" and ctx.is_set("schedule.min_lr") and ctx["optim.lr"]:
        return ctx["schedule.min_lr"] / ctx["optim.lr"], "schedule.min_lr / optim.lr"
    if option == "min_lr_ratio" and chosen == "one_cycle" and not ctx.is_set(ctx.option):
        ratio = 1 / (ctx["schedule.div_factor"] * ctx["schedule.final_div_factor"])
        return ratio, "1 / (schedule.div_factor * schedule.final_div_factor)"
    if option not in info.takes:
        return ctx.set_or(None, f"not an option of {chosen}")
    return ctx.set_or(*info.takes[option])


def make_schedule_spec(ctx: PlanContext) -> ScheduleSpec:
    """Return the schedule that was decided, lengths in optimizer steps."""
    chosen: str = ctx["schedule.name"]
    values = {option: ctx[f"schedule.{option}"] for option in schedule_info(chosen).takes}
    warmup = ctx.length_in_steps(values.get("warmup") or "0%")
    cycled = values.get("cycle_momentum")
    spec = ScheduleSpec(
        name=chosen,
        total=ctx["total_steps"],
        warmup=warmup,
        warmup_start=values.get("warmup_start"),
        min_lr_ratio=values.get("min_lr_ratio") or 0.0,
        min_lr_mode=values.get("min_lr_mode", "scale"),
        interval=ctx.steps(values["interval"]) if "interval" in values else 1.0,
        curve_options=_curve_options(ctx, values, warmup),
        momentum=(values["base_momentum"], values["max_momentum"]) if cycled else None,
        save_cycles=bool(values.get("save_cycles")),
    )
    _check_lengths(ctx, spec)
    _check_values(ctx, spec)
    return spec


def _curve_options(ctx: PlanContext, values: Mapping[str, Any], warmup: float) -> dict[str, Any]:
    """Return the options of the curve alone; lengths that are not set follow from others."""
    own = {option: value for option, value in values.items() if option not in _NOT_OF_CURVE}
    for option in LENGTHS:
        if own.get(option) is not None:
            own[option] = ctx.length_in_steps(own[option])
    if "milestones" in own:
        own["milestones"] = tuple(map(ctx.length_in_steps, own["milestones"]))
    if "timescale" in own and own["timescale"] is None:
        own["timescale"] = warmup or _TIMESCALE
    if "step_size_down" in own and own["step_size_down"] is None:
        own["step_size_down"] = own["step_size_up"]
    return own


def _check_lengths(ctx: PlanContext, spec: ScheduleSpec) -> None:
    own, run = spec.curve_options, f"the run of {spec.total} steps"
    decay_steps = own.get("decay") or 0
    if spec.warmup + decay_steps > spec.total:
        decay = f" and schedule.decay={ctx['schedule.decay']!r}" if "decay" in own else ""
        ctx.reject(
            f"schedule.warmup={ctx['schedule.warmup']!r}{decay}: "
            f"{spec.warmup + decay_steps:g} steps are longer than {run}. Use a shorter "
            "warm-up or a longer run."
        )
    steps = own.get("milestones", ())
    if list(steps) != sorted(set(steps)) or max(steps, default=0) >= spec.total:
        ctx.reject(
            f"schedule.milestones={ctx.get('schedule.milestones')!r} are at steps "
            f"{', '.join(f'{step:g}' for step in steps)}; they must increase, and be within {run}. "
            "Set them in order, such as ('50%', '75%')."
        )
    if spec.name == "cosine_restarts" and own["T_0"] is None and own["cycles"] is None:
        ctx.reject(
            "schedule.name='cosine_restarts' needs the length of a cycle: set schedule.cycles=5 or "
            "schedule.T_0='10 epochs'."
        )
    elif spec.save_cycles and not cycle_ends(spec):
        ctx.reject(
            "schedule.save_cycles=True saves at the end of each cycle, and the first one does not "
            f"end within {run}. Use shorter cycles or a longer run."
        )


def _check_values(ctx: PlanContext, spec: ScheduleSpec) -> None:
    lowest, peak, own = ctx.get("schedule.min_lr"), ctx["optim.lr"], spec.curve_options
    if lowest is not None and ctx.task_info.own_optimizer:
        ctx.reject(
            "schedule.min_lr is a learning rate, and that of the Task's optimizer is not known. "
            "Set schedule.min_lr_ratio."
        )
    elif lowest is not None and peak is not None and lowest > peak:
        ctx.reject(
            f"schedule.min_lr={lowest} is above the peak, optim.lr={peak}. Use a lower minimum or "
            "a higher peak."
        )
    if spec.name == "cyclic" and ctx.is_set("schedule.gamma") and own["mode"] != "exp_range":
        ctx.reject("schedule.gamma is for one mode of cyclic: set schedule.mode='exp_range'.")
    if spec.name == "one_cycle" and own["three_phase"] and own["pct_start"] > 0.5:
        ctx.reject(
            f"schedule.pct_start={own['pct_start']} with schedule.three_phase=True leaves no time "
            "for the last phase: the learning rate falls as long as it rises. Use at most 0.5."
        )
    if spec.momentum is None:
        return
    # The momentum of the Task's optimizer is not known yet.
    if not (ctx.task_info.own_optimizer or ctx["optim.momentum"] or ctx["optim.betas"]):
        ctx.reject(no_momentum_message(spec.name))
    low, high = spec.momentum
    if low > high:
        ctx.reject(
            f"schedule.base_momentum={low} is above schedule.max_momentum={high}. Use a lower "
            "base_momentum."
        )
