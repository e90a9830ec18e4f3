"""The learning-rate schedule: rules and constraints by its registry, and the resulting spec."""

from collections.abc import Callable
from typing import Any

from surestep.config.schedule import Schedule
from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules.helpers import Refusals, Rows, default_value, is_set, user_value
from surestep.engine.schedule.curves import LENGTHS
from surestep.engine.schedule.lr import no_momentum_message
from surestep.engine.schedule.registry import BUILT_IN, OWN, ScheduleSpec, schedule_info

OPTIONS = tuple(name for name in Schedule.model_fields if name != "name")
Check = Callable[[PlanContext], str | None]  # returns what is wrong
NEEDED = {option for entry in BUILT_IN.values() for option in entry.needs}
# What every schedule has, or what is no option of its curve.
_NOT_OF_CURVE = (
    *("warmup", "warmup_start", "interval", "min_lr", "min_lr_ratio", "min_lr_mode", "save_cycles"),
    *("cycle_momentum", "base_momentum", "max_momentum", "final_div_factor"),
)
_TIMESCALE = 10_000.0  # Source: transformers.get_inverse_sqrt_schedule, without warm-up


def make_schedule_spec(k: PlanContext) -> ScheduleSpec:
    """Return the schedule that was chosen, lengths in steps."""
    name: str = k["schedule.name"]
    values = {option: k[f"schedule.{option}"] for option in schedule_info(name).takes}
    warmup = warmup_steps(k)
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
    return ScheduleSpec(
        name=name,
        total=k["total_steps"],
        warmup=warmup,
        warmup_start=values.get("warmup_start"),
        min_lr_ratio=values.get("min_lr_ratio") or 0.0,
        min_lr_mode=values.get("min_lr_mode", "scale"),
        interval=k.steps(values["interval"]) if "interval" in values else 1.0,
        curve_options=own,
        momentum=(values["base_momentum"], values["max_momentum"])
        if values.get("cycle_momentum")
        else None,
        save_cycles=bool(values.get("save_cycles")),
    )


def warmup_steps(k: PlanContext) -> float:
    """Return the length of the warm-up in optimizer steps."""
    text: str | None = k["schedule.warmup"]
    return k.length_in_steps(text) if text is not None else 0.0


def _rules(option: str) -> tuple[Rule, ...]:
    """Return the rules of an option: the value that was set, or the schedule's default."""

    def of(name: str, value: Any, reason: str) -> Rule:
        return Rule(lambda k: k["schedule.name"] == name, lambda _: value, reason)

    return (
        user_value(f"schedule.{option}"),
        *(
            of(name, *entry.takes[option])
            for name, entry in BUILT_IN.items()
            if option in entry.takes
        ),
        Rule(
            lambda k: option in schedule_info(k["schedule.name"]).takes,
            lambda k: schedule_info(k["schedule.name"]).takes[option].value,
            "the default of {k[schedule.name]}",
        ),
        default_value(None, "not an option of {k[schedule.name]}"),
    )


ROWS: Rows = {
    "schedule.name": (
        Rule(lambda k: k.task_info.own_schedule, lambda _: OWN, "the Task brings its schedule"),
        user_value("schedule.name"),
        default_value("constant", "not set: the learning rate is constant"),
    ),
    **{f"schedule.{option}": _rules(option) for option in OPTIONS if option != "min_lr_ratio"},
    "schedule.min_lr_ratio": (
        Rule(
            is_set("schedule.min_lr"),
            lambda k: k["schedule.min_lr"] / k["optim.lr"],
            "schedule.min_lr / optim.lr",
        ),
        Rule(
            lambda k: (
                k["schedule.name"] == "one_cycle" and "schedule.min_lr_ratio" not in k.set_options
            ),
            lambda k: 1 / (k["schedule.div_factor"] * k["schedule.final_div_factor"]),
            "1 / (schedule.div_factor * schedule.final_div_factor)",
        ),
        *_rules("min_lr_ratio"),
    ),
}


def _value(k: PlanContext, option: str) -> Any:
    """Return the value of an option before it is decided: as set, or the schedule's default."""
    default = schedule_info(k["schedule.name"]).takes.get(option)
    return k.set_options.get(f"schedule.{option}", default.value if default is not None else None)


def _are_set(k: PlanContext, *options: str) -> bool:
    return all(f"schedule.{option}" in k.set_options for option in options)


def _check_name(k: PlanContext) -> str | None:
    options = [name for name in k.set_options if name.startswith("schedule.")]
    if k.task_info.own_schedule and options:
        return (
            f"{options[0]} is set, but the Task has its own schedule, which takes none of these "
            "options. Put it into that function, or leave Task(schedule=...) out."
        )
    name = k.set_options.get("schedule.name")
    if name == "reduce_on_plateau" and not k.task_info.val_sets:
        return (
            "schedule.name='reduce_on_plateau' depends on evaluations: give the Task val data, or "
            "use schedule.name='cosine'."
        )
    return None


def _check_warmup_start(k: PlanContext) -> str | None:
    if _are_set(k, "warmup_start") and not warmup_steps(k):
        return "schedule.warmup_start needs a warm-up: say schedule.warmup='5%' with it."
    return None


def _check_warmup(k: PlanContext) -> str | None:
    if warmup_steps(k) <= k["total_steps"]:
        return None
    return (
        f"schedule.warmup={k['schedule.warmup']!r} is {warmup_steps(k):g} steps, longer than the "
        f"run of {k['total_steps']} steps. Use a shorter warm-up or a longer run."
    )


def _check_min_lr(k: PlanContext) -> str | None:
    if not _are_set(k, "min_lr"):
        return None
    least, peak = k.set_options["schedule.min_lr"], k["optim.lr"]
    if peak is None:
        return (
            "schedule.min_lr is a rate, and the Task's optimizer has its own, which the Plan does "
            "not know. Say schedule.min_lr_ratio."
        )
    if least > peak:
        return (
            f"schedule.min_lr={least} is above the peak, optim.lr={peak}. Use a lower floor or a "
            "higher peak."
        )
    if _are_set(k, "min_lr_ratio"):
        return "schedule.min_lr and schedule.min_lr_ratio both set the minimum. Say one of them."
    return None


def _check_cycles(k: PlanContext) -> str | None:
    if k["schedule.name"] != "cosine_restarts":
        return None
    if _are_set(k, "T_0", "cycles"):
        return "schedule.T_0 and schedule.cycles both set the length of a cycle. Say one of them."
    if not _are_set(k, "T_0") and not _are_set(k, "cycles"):
        return (
            "schedule.name='cosine_restarts' needs the length of a cycle: say schedule.cycles=5 "
            "or schedule.T_0='10 epochs'."
        )
    if _are_set(k, "T_mult", "cycles"):
        return (
            "schedule.T_mult makes cycles longer, and schedule.cycles makes them equal. Say "
            "schedule.T_0 instead of cycles."
        )
    return None


def _first_cycle(k: PlanContext) -> float:
    """Return the length of the first cycle in steps."""
    if k["schedule.name"] == "cosine_restarts":
        return k.length_in_steps(_value(k, "T_0")) if _value(k, "T_0") else 0.0
    up = _value(k, "step_size_up")
    return k.length_in_steps(up) + k.length_in_steps(_value(k, "step_size_down") or up)


def _check_save_cycles(k: PlanContext) -> str | None:
    if not _value(k, "save_cycles") or warmup_steps(k) + _first_cycle(k) <= k["total_steps"]:
        return None
    return (
        "schedule.save_cycles=True saves at each cycle's end, and the first one, of "
        f"{_first_cycle(k):g} steps, does not end within the run of {k['total_steps']} steps. Use "
        "shorter cycles or a longer run."
    )


def _check_milestones(k: PlanContext) -> str | None:
    places = [k.length_in_steps(each) for each in _value(k, "milestones") or ()]
    if not places or (places == sorted(set(places)) and places[-1] < k["total_steps"]):
        return None
    return (
        f"schedule.milestones={k.set_options['schedule.milestones']!r} must increase, and be "
        f"within the run of {k['total_steps']} steps: they are at steps "
        f"{', '.join(f'{each:g}' for each in places)}. Say them in order, such as ('50%', '75%')."
    )


def _check_gamma(k: PlanContext) -> str | None:
    is_used = k["schedule.name"] != "cyclic" or k.set_options.get("schedule.mode") == "exp_range"
    if is_used or not _are_set(k, "gamma"):
        return None
    return "schedule.gamma shrinks the cycles of one mode only: say schedule.mode='exp_range'."


def _check_decay(k: PlanContext) -> str | None:
    if k["schedule.name"] != "warmup_stable_decay":
        return None
    decay = _value(k, "decay")
    if warmup_steps(k) + k.length_in_steps(decay) <= k["total_steps"]:
        return None
    return (
        f"schedule.warmup={k['schedule.warmup']!r} and schedule.decay={decay!r} are longer "
        f"together than the run of {k['total_steps']} steps. Use shorter ones or a longer run."
    )


def _check_pct_start(k: PlanContext) -> str | None:
    share = k.set_options.get("schedule.pct_start", 0.0)
    if not _value(k, "three_phase") or share <= 0.5:
        return None
    return (
        f"schedule.pct_start={share} with schedule.three_phase=True leaves no time: the rate falls "
        "for as long as it rises, and then falls further. Use at most 0.5."
    )


def _check_final_div_factor(k: PlanContext) -> str | None:
    if _are_set(k, "final_div_factor") and (_are_set(k, "min_lr") or _are_set(k, "min_lr_ratio")):
        return (
            "schedule.final_div_factor and schedule.min_lr (or min_lr_ratio) both set the last "
            "rate. Say one of them."
        )
    return None


def _check_cycle_momentum(k: PlanContext) -> str | None:
    # The Task's own optimizer is checked when it is built.
    has_momentum = (
        k.task_info.own_optimizer or k.chosen.get("optim.momentum") or k.chosen.get("optim.betas")
    )
    if not _value(k, "cycle_momentum") or has_momentum:
        return None
    return no_momentum_message(k["schedule.name"])


def _check_max_momentum(k: PlanContext) -> str | None:
    low, high = _value(k, "base_momentum"), _value(k, "max_momentum")
    if k["schedule.cycle_momentum"]:
        if low <= high:
            return None
        return (
            f"schedule.base_momentum={low} is above schedule.max_momentum={high}. Let it be the "
            "lower one."
        )
    if _are_set(k, "base_momentum") or _are_set(k, "max_momentum"):
        return (
            "schedule.base_momentum and max_momentum are for a momentum that is cycled: say "
            "schedule.cycle_momentum=True."
        )
    return None


def _check_needed(option: str) -> Check:
    """Return the check that an option is set if the schedule requires it."""

    def check(k: PlanContext) -> str | None:
        name = k["schedule.name"]
        example = schedule_info(name).needs.get(option)
        if example is None or _are_set(k, option):
            return None
        return f"schedule.name={name!r} needs a {option}: say schedule.{option}={example}."

    return check


def _constraint(check: Check) -> Constraint:
    return Constraint(lambda k: check(k) is not None, lambda k: str(check(k)))


_CHECKS = {
    "name": _check_name,
    "warmup_start": _check_warmup_start,
    "interval": _check_warmup,
    "min_lr": _check_min_lr,
    "cycles": _check_cycles,
    "save_cycles": _check_save_cycles,
    "milestones": _check_milestones,
    "gamma": _check_gamma,
    "decay": _check_decay,
    "pct_start": _check_pct_start,
    "final_div_factor": _check_final_div_factor,
    "cycle_momentum": _check_cycle_momentum,
    "max_momentum": _check_max_momentum,
}
REFUSALS: Refusals = {
    f"schedule.{option}": tuple(map(_constraint, checks))
    for option in Schedule.model_fields
    if (
        checks := (
            *((_check_needed(option),) if option in NEEDED else ()),
            *((_CHECKS[option],) if option in _CHECKS else ()),
        )
    )
}
