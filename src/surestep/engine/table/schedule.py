"""The learning-rate schedule: rows and refusals by its catalog."""

from typing import Any

from surestep.base.groups.schedule import Schedule
from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.schedule.catalog import CATALOG, OWN
from surestep.engine.table.curve import CURVE
from surestep.engine.table.rows import Refusals, Rows, default, is_said, said

OPTIONS = tuple(name for name in Schedule.model_fields if name != "name")
NEEDED = {option for entry in CATALOG.values() for option in entry.needs}


def _rows(option: str) -> tuple[Row, ...]:
    """Return the rows of an option: what was said, or what it is for the schedule chosen."""

    def of(name: str, value: Any, reason: str) -> Row:
        return Row(lambda k: k["schedule.name"] == name, lambda _: value, reason)

    return (
        said(f"schedule.{option}"),
        *(
            of(name, *entry.takes[option])
            for name, entry in CATALOG.items()
            if option in entry.takes
        ),
        default(None, "not an option of {k[schedule.name]}"),
    )


def _foreign(option: str) -> Refusal:
    """Refuse an option that the schedule chosen does not take; no warm-up is always taken."""

    def message(k: Known) -> str:
        name, takes = k["schedule.name"], CATALOG[k["schedule.name"]].takes
        owners = [other for other, entry in CATALOG.items() if option in entry.takes]
        usual = "cosine" if "cosine" in owners else owners[0]
        instead = ", say schedule.warmup='0%'," if option == "warmup" else ""
        return (
            f"schedule.{option}={k.said[f'schedule.{option}']!r} is an option of "
            f"{', '.join(owners)}, and the schedule is {name}, which takes "
            f"{', '.join(takes)}. Leave it out{instead} or say schedule.name={usual!r}."
        )

    return Refusal(
        lambda k: (
            k.said.get(f"schedule.{option}", "0%") != "0%"
            and option not in CATALOG[k["schedule.name"]].takes
        ),
        message,
    )


def _needed(option: str) -> Refusal:
    """Refuse to go without an option that the schedule chosen cannot do without."""

    def example(k: Known) -> str | None:
        return CATALOG[k["schedule.name"]].needs.get(option)

    return Refusal(
        lambda k: example(k) is not None and f"schedule.{option}" not in k.said,
        lambda k: (
            f"schedule.name={k['schedule.name']!r} needs a {option}: say "
            f"schedule.{option}={example(k)}."
        ),
    )


ROWS: Rows = {
    "schedule.name": (
        Row(lambda k: k.given.own_schedule, lambda _: OWN, "the Task brings its schedule"),
        said("schedule.name"),
        Row(is_said("schedule.chain"), lambda _: "chain", "schedule.chain is said"),
        default("constant", "nothing said: the rate is left alone"),
    ),
    **{f"schedule.{option}": _rows(option) for option in OPTIONS if option != "min_lr_ratio"},
    "schedule.min_lr_ratio": (
        Row(
            is_said("schedule.min_lr"),
            lambda k: k["schedule.min_lr"] / k["optim.lr"],
            "schedule.min_lr / optim.lr",
        ),
        Row(
            lambda k: k["schedule.name"] == "one_cycle" and "schedule.min_lr_ratio" not in k.said,
            lambda k: 1 / (k["schedule.div_factor"] * k["schedule.final_div_factor"]),
            "1 / (schedule.div_factor * schedule.final_div_factor)",
        ),
        *_rows("min_lr_ratio"),
    ),
}

REFUSALS: Refusals = {
    "schedule.name": (
        Refusal(
            lambda k: k.given.own_schedule and any(n.startswith("schedule.") for n in k.said),
            lambda k: (
                f"{next(n for n in k.said if n.startswith('schedule.'))} is said, but the Task "
                "brings its own schedule, which takes none of these options. Put it into that "
                "function, or leave Task(schedule=...) out."
            ),
        ),
        Refusal(
            lambda k: k.said.get("schedule.name") == "reduce_on_plateau" and not k.given.val_sets,
            lambda _: (
                "schedule.name='reduce_on_plateau' goes by evaluations: give the Task val data, or "
                "use schedule.name='cosine'."
            ),
        ),
    ),
    **{
        f"schedule.{option}": (
            _foreign(option),
            *((_needed(option),) if option in NEEDED else ()),
            *CURVE.get(option, ()),
        )
        for option in OPTIONS
    },
}
