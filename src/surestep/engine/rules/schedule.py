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
def name(k: PlanContext) -> Decision:
    """Keep the learning rate constant, unless a schedule is set."""
    if k.task_info.own_schedule:
        foreign = [each for each in k.set_options if each.startswith("schedule.")]
        if foreign:
            k.reject(
                f"{foreign[0]} is set, but the Task brings its own schedule. Change that function, "
                "or leave Task(schedule=...) out."
            )
        return OWN, "the Task brings its schedule"
    if k.get("schedule.name") == "reduce_on_plateau" and not k.task_info.val_sets:
        k.reject(
            "schedule.name='reduce_on_plateau' needs evaluations. Pass Task(val=...), or use "
            "schedule.name='cosine'."
        )
    return k.set_or("constant", "not set: the learning rate is constant")


@rule(*(f"schedule.{option}" for option in Schedule.model_fields if option != "name"))
def own_option(k: PlanContext) -> Decision:
    """Use the default of the schedule."""
    chosen, option = k["schedule.name"], k.option.removeprefix("schedule.")
    info = schedule_info(chosen)
    if option in info.needs and not k.is_set(k.option):
        k.reject(
            f"schedule.name={chosen!r} needs a {option}: set schedule.{option}="
            f"{info.needs[option]}."
        )
    if option in _CHECKS:
        _CHECKS[option](k)
    if option == "min_lr_ratio" and k.is_set("schedule.min_lr") and k["optim.lr"]:
        return k["schedule.min_lr"] / k["optim.lr"], "schedule.min_lr / optim.lr"
    if option == "min_lr_ratio" and chosen == "one_cycle" and not k.is_set(k.option):
        ratio = 1 / (k["schedule.div_factor"] * k["schedule.final_div_factor"])
        return ratio, "1 / (schedule.div_factor * schedule.final_div_factor)"
    if option not in info.takes:
        return k.set_or(None, f"not an option of {chosen}")
    return k.set_or(*info.takes[option])


def _check_warmup(k: PlanContext) -> None:
    if k.is_set("schedule.warmup_start") and not warmup_steps(k):
        k.reject("schedule.warmup_start needs a warm-up: set schedule.warmup='5%' too.")
    if warmup_steps(k) > k["total_steps"]:
        k.reject(
            f"schedule.warmup={k['schedule.warmup']!r} is {warmup_steps(k):g} steps, longer than "
            f"the run of {k['total_steps']} steps. Use a shorter warm-up or a longer run."
        )


def _check_min_lr(k: PlanContext) -> None:
    value, peak = k.get("schedule.min_lr"), k["optim.lr"]
    if value is not None and peak is None:
        k.reject(
            "schedule.min_lr is a learning rate, and that of the Task's optimizer is not known. "
            "Set schedule.min_lr_ratio."
        )
    elif value is not None and value > peak:
        k.reject(
            f"schedule.min_lr={value} is above the peak, optim.lr={peak}. Use a lower minimum or a "
            "higher peak."
        )


def _check_cycles(k: PlanContext) -> None:
    if k["schedule.name"] == "cosine_restarts" and not (
        k.is_set("schedule.T_0") or k.is_set("schedule.cycles")
    ):
        k.reject(
            "schedule.name='cosine_restarts' needs the length of a cycle: set schedule.cycles=5 or "
            "schedule.T_0='10 epochs'."
        )


def _check_saved_cycles(k: PlanContext) -> None:
    if not k.get("schedule.save_cycles"):
        return
    if k["schedule.name"] == "cosine_restarts":
        first = k["schedule.T_0"]
        length = k.length_in_steps(first) if first else 0.0
    else:
        up = k["schedule.step_size_up"]
        length = k.length_in_steps(up) + k.length_in_steps(k["schedule.step_size_down"] or up)
    if warmup_steps(k) + length > k["total_steps"]:
        k.reject(
            "schedule.save_cycles=True saves at the end of each cycle, and the first one, of "
            f"{length:g} steps, does not end within the run of {k['total_steps']} steps. Use "
            "shorter cycles or a longer run."
        )


def _check_milestones(k: PlanContext) -> None:
    milestones = k.get("schedule.milestones", ())
    steps = [k.length_in_steps(each) for each in milestones]
    if steps != sorted(set(steps)) or any(step >= k["total_steps"] for step in steps):
        k.reject(
            f"schedule.milestones={milestones!r} are at steps "
            f"{', '.join(f'{step:g}' for step in steps)}; they must increase, and be within the "
            f"run of {k['total_steps']} steps. Set them in order, such as ('50%', '75%')."
        )


def _check_gamma(k: PlanContext) -> None:
    is_set = k.is_set("schedule.gamma") and k["schedule.name"] == "cyclic"
    if is_set and k.get("schedule.mode") != "exp_range":
        k.reject("schedule.gamma is for one mode of cyclic: set schedule.mode='exp_range'.")


def _check_decay(k: PlanContext) -> None:
    if k["schedule.name"] != "warmup_stable_decay":
        return
    decay = k.get("schedule.decay", schedule_info("warmup_stable_decay").takes["decay"].value)
    if warmup_steps(k) + k.length_in_steps(decay) > k["total_steps"]:
        k.reject(
            f"schedule.warmup={k['schedule.warmup']!r} and schedule.decay={decay!r} together are "
            f"longer than the run of {k['total_steps']} steps. Use shorter ones or a longer run."
        )


def _check_phases(k: PlanContext) -> None:
    if k.get("schedule.three_phase") and k.get("schedule.pct_start", 0.0) > 0.5:
        k.reject(
            f"schedule.pct_start={k.get('schedule.pct_start')} with schedule.three_phase=True "
            "leaves no time for the last phase: the learning rate falls as long as it rises. Use "
            "at most 0.5."
        )


def _check_cycled_momentum(k: PlanContext) -> None:
    """Check that there is a momentum to cycle; that of the Task's optimizer is not known yet."""
    default = schedule_info(k["schedule.name"]).takes.get("cycle_momentum")
    cycles = k.get("schedule.cycle_momentum", default is not None and default.value)
    known = k.task_info.own_optimizer or k["optim.momentum"] or k["optim.betas"]
    if cycles and not known:
        k.reject(no_momentum_message(k["schedule.name"]))


def _check_momentum_range(k: PlanContext) -> None:
    limits = [k.get(f"schedule.{each}_momentum") for each in ("base", "max")]
    if any(limits) and not k["schedule.cycle_momentum"]:
        k.reject(
            "schedule.base_momentum and max_momentum are for a momentum that is cycled: set "
            "schedule.cycle_momentum=True."
        )
    elif any(limits):
        takes = schedule_info(k["schedule.name"]).takes
        low, high = (
            limits[0] or takes["base_momentum"].value,
            limits[1] or takes["max_momentum"].value,
        )
        if low > high:
            k.reject(
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


def warmup_steps(k: PlanContext) -> float:
    """Return the length of the warm-up in optimizer steps."""
    text: str | None = k["schedule.warmup"]
    return k.length_in_steps(text) if text is not None else 0.0


def make_schedule_spec(k: PlanContext) -> ScheduleSpec:
    """Return the schedule that was decided, lengths in optimizer steps."""
    chosen: str = k["schedule.name"]
    values = {option: k[f"schedule.{option}"] for option in schedule_info(chosen).takes}
    warmup = warmup_steps(k)
    cycled = values.get("cycle_momentum")
    return ScheduleSpec(
        name=chosen,
        total=k["total_steps"],
        warmup=warmup,
        warmup_start=values.get("warmup_start"),
        min_lr_ratio=values.get("min_lr_ratio") or 0.0,
        min_lr_mode=values.get("min_lr_mode", "scale"),
        interval=k.steps(values["interval"]) if "interval" in values else 1.0,
        curve_options=_curve_options(k, values, warmup),
        momentum=(values["base_momentum"], values["max_momentum"]) if cycled else None,
        save_cycles=bool(values.get("save_cycles")),
    )


def _curve_options(k: PlanContext, values: Mapping[str, Any], warmup: float) -> dict[str, Any]:
    """Return the options of the curve alone; lengths that are not set follow from others."""
    own = {option: value for option, value in values.items() if option not in _NOT_OF_CURVE}
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
