"""The learning-rate schedule: rows and refusals by its catalog."""

from typing import Any

from surestep.config.schedule import Schedule
from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules.helpers import Refusals, Rows, default_value, is_set, user_value
from surestep.engine.rules.schedule_curve import CURVE
from surestep.engine.schedule.registry import CATALOG, OWN

OPTIONS = tuple(name for name in Schedule.model_fields if name != "name")
NEEDED = {option for entry in CATALOG.values() for option in entry.needs}


def _rows(option: str) -> tuple[Rule, ...]:
    """Return the rows of an option: what was said, or what it is for the schedule chosen."""

    def of(name: str, value: Any, reason: str) -> Rule:
        return Rule(lambda k: k["schedule.name"] == name, lambda _: value, reason)

    return (
        user_value(f"schedule.{option}"),
        *(
            of(name, *entry.takes[option])
            for name, entry in CATALOG.items()
            if option in entry.takes
        ),
        default_value(None, "not an option of {k[schedule.name]}"),
    )


def _needed(option: str) -> Constraint:
    """Refuse to go without an option that the schedule chosen cannot do without."""

    def example(k: PlanContext) -> str | None:
        return CATALOG[k["schedule.name"]].needs.get(option)

    return Constraint(
        lambda k: example(k) is not None and f"schedule.{option}" not in k.set_options,
        lambda k: (
            f"schedule.name={k['schedule.name']!r} needs a {option}: say "
            f"schedule.{option}={example(k)}."
        ),
    )


ROWS: Rows = {
    "schedule.name": (
        Rule(lambda k: k.task_info.own_schedule, lambda _: OWN, "the Task brings its schedule"),
        user_value("schedule.name"),
        Rule(is_set("schedule.chain"), lambda _: "chain", "schedule.chain is said"),
        default_value("constant", "not set: the learning rate is constant"),
    ),
    **{f"schedule.{option}": _rows(option) for option in OPTIONS if option != "min_lr_ratio"},
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
        *_rows("min_lr_ratio"),
    ),
}

REFUSALS: Refusals = {
    "schedule.name": (
        Constraint(
            lambda k: (
                k.task_info.own_schedule and any(n.startswith("schedule.") for n in k.set_options)
            ),
            lambda k: (
                f"{next(n for n in k.set_options if n.startswith('schedule.'))} is said, but the "
                "Task "
                "brings its own schedule, which takes none of these options. Put it into that "
                "function, or leave Task(schedule=...) out."
            ),
        ),
        Constraint(
            lambda k: (
                k.set_options.get("schedule.name") == "reduce_on_plateau"
                and not k.task_info.val_sets
            ),
            lambda _: (
                "schedule.name='reduce_on_plateau' goes by evaluations: give the Task val data, or "
                "use schedule.name='cosine'."
            ),
        ),
    ),
    **{
        f"schedule.{option}": (
            *((_needed(option),) if option in NEEDED else ()),
            *CURVE.get(option, ()),
        )
        for option in OPTIONS
    },
}
