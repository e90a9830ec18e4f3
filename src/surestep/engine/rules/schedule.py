"""The learning-rate schedule: options by its registry, and what they cannot be together."""

from collections.abc import Mapping
from typing import Any

from surestep.config.schedule import Schedule
from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.rules.rule import rule
from surestep.engine.schedule.curves import LENGTHS
from surestep.engine.schedule.lr import no_momentum_message
from surestep.engine.schedule.registry import OWN, ScheduleSpec, schedule_info

# Options that every schedule has, or that do not belong to its curve.
_NOT_OF_CURVE = (
    *("warmup", "warmup_start", "interval", "min_lr", "min_lr_ratio", "min_lr_mode", "save_cycles"),
    *("cycle_momentum", "base_momentum", "max_momentum", "final_div_factor"),
)
_TIMESCALE = 10_000.0  # Source: transformers.get_inverse_sqrt_schedule, without warm-up


@rule("schedule.name")
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


@rule(*(f"schedule.{option}" for option in Schedule.model_fields if option != "name"))
def own_option(ctx: PlanContext) -> Decision:
    """Use the default of the schedule."""
    chosen, option = ctx["schedule.name"], ctx.option.removeprefix("schedule.")
    info = schedule_info(chosen)
    if option in info.needs and not ctx.is_set(ctx.option):
        ctx.reject(
            f"schedule.name={chosen!r} needs a {option}: set schedule.{option}="
            f"{info.needs[option]}."
        )
    if option in _CHECKS:
        _CHECKS[option](ctx)
    if option == "min_lr_ratio" and ctx.is_set("schedule.min_lr") and ctx["optim.lr"]:
        return ctx["schedule.min_lr"] / ctx["optim.lr"], "schedule.min_lr / optim.lr"
    if option == "min_lr_ratio" and chosen == "one_cycle" and not ctx.is_set(ctx.option):
        ratio = 1 / (ctx["schedule.div_factor"] * ctx["schedule.final_div_factor"])
        return ratio, "1 / (schedule.div_factor * schedule.final_div_factor)"
    if option not in info.takes:
        return ctx.set_or(None, f"not an option of {chosen}")
    return ctx.set_or(*info.takes[option])


def _check_warmup(ctx: PlanContext) -> None:
    if ctx.is_set("schedule.warmup_start") and not warmup_steps(ctx):
        ctx.reject("schedule.warmup_start needs a warm-up: set schedule.warmup='5%' too.")
    if warmup_steps(ctx) > ctx["total_steps"]:
        ctx.reject(
            f"schedule.warmup={ctx['schedule.warmup']!r} is {warmup_steps(ctx):g} steps, longer "
            f"than the run of {ctx['total_steps']} steps. Use a shorter warm-up or a longer run."
        )


def _check_min_lr(ctx: PlanContext) -> None:
    value, peak = ctx.get("schedule.min_lr"), ctx["optim.lr"]
    if value is not None and peak is None:
        ctx.reject(
            "schedule.min_lr is a learning rate, and that of the Task's optimizer is not known. "
            "Set schedule.min_lr_ratio."
        )
    elif value is not None and value > peak:
        ctx.reject(
            f"schedule.min_lr={value} is above the peak, optim.lr={peak}. Use a lower minimum or a "
            "higher peak."
        )


def _check_cycles(ctx: PlanContext) -> None:
    if ctx["schedule.name"] == "cosine_restarts" and not (
        ctx.is_set("schedule.T_0") or ctx.is_set("schedule.cycles")
    ):
        ctx.reject(
            "schedule.name='cosine_restarts' needs the length of a cycle: set schedule.cycles=5 or "
            "schedule.T_0='10 epochs'."
        )


def _check_saved_cycles(ctx: PlanContext) -> None:
    if not ctx.get("schedule.save_cycles"):
        return
    if ctx["schedule.name"] == "cosine_restarts":
        first = ctx["schedule.T_0"]
        length = ctx.length_in_steps(first) if first else 0.0
    else:
        up = ctx["schedule.step_size_up"]
        length = ctx.length_in_steps(up) + ctx.length_in_steps(ctx["schedule.step_size_down"] or up)
    if warmup_steps(ctx) + length > ctx["total_steps"]:
        ctx.reject(
            "schedule.save_cycles=True saves at the end of each cycle, and the first one, of "
            f"{length:g} steps, does not end within the run of {ctx['total_steps']} steps. Use "
            "shorter cycles or a longer run."
        )


def _check_milestones(ctx: PlanContext) -> None:
    milestones = ctx.get("schedule.milestones", ())
    steps = [ctx.length_in_steps(point) for point in milestones]
    if steps != sorted(set(steps)) or any(step >= ctx["total_steps"] for step in steps):
        ctx.reject(
            f"schedule.milestones={milestones!r} are at steps "
            f"{', '.join(f'{step:g}' for step in steps)}; they must increase, and be within the "
            f"run of {ctx['total_steps']} steps. Set them in order, such as ('50%', '75%')."
        )


def _check_gamma(ctx: PlanContext) -> None:
    is_set = ctx.is_set("schedule.gamma") and ctx["schedule.name"] == "cyclic"
    if is_set and ctx.get("schedule.mode") != "exp_range":
        ctx.reject("schedule.gamma is for one mode of cyclic: set schedule.mode='exp_range'.")


def _check_decay(ctx: PlanContext) -> None:
    if ctx["schedule.name"] != "warmup_stable_decay":
        return
    decay = ctx.get("schedule.decay", schedule_info("warmup_stable_decay").takes["decay"].value)
    if warmup_steps(ctx) + ctx.length_in_steps(decay) > ctx["total_steps"]:
        ctx.reject(
            f"schedule.warmup={ctx['schedule.warmup']!r} and schedule.decay={decay!r} together are "
            f"longer than the run of {ctx['total_steps']} steps. Use shorter ones or a longer run."
        )


def _check_phases(ctx: PlanContext) -> None:
    if ctx.get("schedule.three_phase") and ctx.get("schedule.pct_start", 0.0) > 0.5:
        ctx.reject(
            f"schedule.pct_start={ctx.get('schedule.pct_start')} with schedule.three_phase=True "
            "leaves no time for the last phase: the learning rate falls as long as it rises. Use "
            "at most 0.5."
        )


def _check_cycled_momentum(ctx: PlanContext) -> None:
    """Check that there is a momentum to cycle; that of the Task's optimizer is not known yet."""
    default = schedule_info(ctx["schedule.name"]).takes.get("cycle_momentum")
    cycles = ctx.get("schedule.cycle_momentum", default is not None and default.value)
    known = ctx.task_info.own_optimizer or ctx["optim.momentum"] or ctx["optim.betas"]
    if cycles and not known:
        ctx.reject(no_momentum_message(ctx["schedule.name"]))


def _check_momentum_range(ctx: PlanContext) -> None:
    limits = [ctx.get(f"schedule.{end}_momentum") for end in ("base", "max")]
    if any(limits) and not ctx["schedule.cycle_momentum"]:
        ctx.reject(
            "schedule.base_momentum and max_momentum are for a momentum that is cycled: set "
            "schedule.cycle_momentum=True."
        )
    elif any(limits):
        takes = schedule_info(ctx["schedule.name"]).takes
        low, high = (
            limits[0] or takes["base_momentum"].value,
            limits[1] or takes["max_momentum"].value,
        )
        if low > high:
            ctx.reject(
                f"schedule.base_momentum={low} is above schedule.max_momentum={high}. Use a lower "
                "base_momentum."
            )


_CHECKS = {
    "interval": _check_warmup,
    "min_lr": _check_min_lr,
    "cycles": _check_cycles,
    "save_cycles": _check_saved_cycles,
    "milestones": _check_milestones,
    "gamma": _check_gamma,
    "decay": _check_decay,
    "pct_start": _check_phases,
    "cycle_momentum": _check_cycled_momentum,
    "max_momentum": _check_momentum_range,
}


def warmup_steps(ctx: PlanContext) -> float:
    """Return the length of the warm-up in optimizer steps."""
    text: str | None = ctx["schedule.warmup"]
    return ctx.length_in_steps(text) if text is not None else 0.0


def make_schedule_spec(ctx: PlanContext) -> ScheduleSpec:
    """Return the schedule that was decided, lengths in optimizer steps."""
    chosen: str = ctx["schedule.name"]
    values = {option: ctx[f"schedule.{option}"] for option in schedule_info(chosen).takes}
    warmup = warmup_steps(ctx)
    cycled = values.get("cycle_momentum")
    return ScheduleSpec(
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
