"""What the options of each schedule cannot be together."""

from typing import Any

from surestep.engine.plan.plan import Constraint, PlanContext
from surestep.engine.rules.schedule_chain import CHAIN
from surestep.engine.rules.schedule_spec import warmup_steps
from surestep.engine.schedule.lr import no_momentum_message
from surestep.engine.schedule.registry import CATALOG


def _value(k: PlanContext, option: str) -> Any:
    """Return what an option will be, said or not."""
    default = CATALOG[k["schedule.name"]].takes.get(option)
    return k.set_options.get(f"schedule.{option}", default.value if default is not None else None)


def _is(k: PlanContext, name: str) -> bool:
    return bool(k["schedule.name"] == name)


def _restarts_length(k: PlanContext) -> str | None:
    """Say what is wrong with the lengths of the cycles."""
    both = "schedule.T_0" in k.set_options and "schedule.cycles" in k.set_options
    if both:
        return "schedule.T_0 and schedule.cycles both say how long a cycle is. Say one of them."
    if "schedule.T_0" not in k.set_options and "schedule.cycles" not in k.set_options:
        return (
            "schedule.name='cosine_restarts' needs the length of a cycle: say schedule.cycles=5 "
            "or schedule.T_0='10 epochs'."
        )
    if "schedule.T_mult" in k.set_options and "schedule.cycles" in k.set_options:
        return (
            "schedule.T_mult makes cycles longer, and schedule.cycles makes them equal. Say "
            "schedule.T_0 instead of cycles."
        )
    return None


def _restarts() -> Constraint:
    return Constraint(
        lambda k: _is(k, "cosine_restarts") and _restarts_length(k) is not None,
        lambda k: str(_restarts_length(k)),
    )


def _has_momentum(k: PlanContext) -> bool:
    """Say whether the optimizer has a momentum to cycle; the Task's own is asked later."""
    return bool(
        k.task_info.own_optimizer or k.chosen.get("optim.momentum") or k.chosen.get("optim.betas")
    )


def _first_cycle(k: PlanContext) -> float:
    """Return the length of the first cycle in steps."""
    if _is(k, "cosine_restarts"):
        return k.length_in_steps(_value(k, "T_0")) if _value(k, "T_0") else 0.0
    up = _value(k, "step_size_up")
    return k.length_in_steps(up) + k.length_in_steps(_value(k, "step_size_down") or up)


def _milestones(k: PlanContext) -> list[float]:
    return [k.length_in_steps(each) for each in _value(k, "milestones") or ()]


def _rising(k: PlanContext) -> bool:
    places = _milestones(k)
    return places == sorted(set(places)) and places[-1] < k["total_steps"]


CURVE: dict[str, tuple[Constraint, ...]] = {
    "warmup_start": (
        Constraint(
            lambda k: "schedule.warmup_start" in k.set_options and not warmup_steps(k),
            lambda _: "schedule.warmup_start needs a warm-up: say schedule.warmup='5%' with it.",
        ),
    ),
    "interval": (
        Constraint(
            lambda k: warmup_steps(k) > k["total_steps"],
            lambda k: (
                f"schedule.warmup={k['schedule.warmup']!r} is {warmup_steps(k):g} steps, longer "
                "than "
                f"the run of {k['total_steps']} steps. Use a shorter warm-up or a longer run."
            ),
        ),
    ),
    "min_lr": (
        Constraint(
            lambda k: "schedule.min_lr" in k.set_options and k["optim.lr"] is None,
            lambda _: (
                "schedule.min_lr is a rate, and the Task's optimizer has its own, which the Plan "
                "does not know. Say schedule.min_lr_ratio."
            ),
        ),
        Constraint(
            lambda k: (
                "schedule.min_lr" in k.set_options
                and k.set_options["schedule.min_lr"] > k["optim.lr"]
            ),
            lambda k: (
                f"schedule.min_lr={k.set_options['schedule.min_lr']} is above the peak, "
                f"optim.lr={k['optim.lr']}. Use a lower floor or a higher peak."
            ),
        ),
        Constraint(
            lambda k: (
                "schedule.min_lr" in k.set_options and "schedule.min_lr_ratio" in k.set_options
            ),
            lambda _: (
                "schedule.min_lr and schedule.min_lr_ratio both say the floor. Say one of them."
            ),
        ),
    ),
    "cycles": (_restarts(),),
    "save_cycles": (
        Constraint(
            lambda k: (
                bool(_value(k, "save_cycles"))
                and warmup_steps(k) + _first_cycle(k) > k["total_steps"]
            ),
            lambda k: (
                f"schedule.save_cycles=True saves at each cycle's end, and the first one, of "
                f"{_first_cycle(k):g} steps, does not end within the run of {k['total_steps']} "
                "steps. Use shorter cycles or a longer run."
            ),
        ),
    ),
    "milestones": (
        Constraint(
            lambda k: bool(_value(k, "milestones")) and not _rising(k),
            lambda k: (
                f"schedule.milestones={k.set_options['schedule.milestones']!r} must rise, and "
                "lie within "
                f"the run of {k['total_steps']} steps: they are at steps "
                f"{', '.join(f'{each:g}' for each in _milestones(k))}. Say them in order, such as "
                "('50%', '75%')."
            ),
        ),
    ),
    "gamma": (
        Constraint(
            lambda k: (
                _is(k, "cyclic")
                and "schedule.gamma" in k.set_options
                and k.set_options.get("schedule.mode") != "exp_range"
            ),
            lambda _: (
                "schedule.gamma shrinks the cycles of one mode alone: say "
                "schedule.mode='exp_range'."
            ),
        ),
    ),
    "decay": (
        Constraint(
            lambda k: (
                _is(k, "warmup_stable_decay")
                and warmup_steps(k) + k.length_in_steps(_value(k, "decay")) > k["total_steps"]
            ),
            lambda k: (
                f"schedule.warmup={k['schedule.warmup']!r} and schedule.decay="
                f"{_value(k, 'decay')!r} are longer together than the run of "
                f"{k['total_steps']} steps. Use shorter ones or a longer run."
            ),
        ),
    ),
    "pct_start": (
        Constraint(
            lambda k: (
                bool(_value(k, "three_phase"))
                and "schedule.pct_start" in k.set_options
                and k.set_options["schedule.pct_start"] > 0.5
            ),
            lambda k: (
                f"schedule.pct_start={k.set_options['schedule.pct_start']} with "
                "schedule.three_phase=True "
                "leaves no time: the rate falls as long as it rises, and goes on. Use at most 0.5."
            ),
        ),
    ),
    "final_div_factor": (
        Constraint(
            lambda k: (
                "schedule.final_div_factor" in k.set_options
                and bool({"schedule.min_lr", "schedule.min_lr_ratio"} & k.set_options.keys())
            ),
            lambda _: (
                "schedule.final_div_factor and schedule.min_lr (or min_lr_ratio) both say where "
                "the rate ends. Say one of them."
            ),
        ),
    ),
    "cycle_momentum": (
        Constraint(
            lambda k: bool(_value(k, "cycle_momentum")) and not _has_momentum(k),
            lambda k: no_momentum_message(k["schedule.name"]),
        ),
    ),
    "max_momentum": (
        Constraint(
            lambda k: (
                bool({"schedule.base_momentum", "schedule.max_momentum"} & k.set_options.keys())
                and not k["schedule.cycle_momentum"]
            ),
            lambda _: (
                "schedule.base_momentum and max_momentum are for a momentum that is cycled: say "
                "schedule.cycle_momentum=True."
            ),
        ),
        Constraint(
            lambda k: (
                bool(k["schedule.cycle_momentum"])
                and _value(k, "base_momentum") > _value(k, "max_momentum")
            ),
            lambda k: (
                f"schedule.base_momentum={_value(k, 'base_momentum')} is above "
                f"schedule.max_momentum={_value(k, 'max_momentum')}. Let it be the lower one."
            ),
        ),
    ),
    "chain": CHAIN,
}
