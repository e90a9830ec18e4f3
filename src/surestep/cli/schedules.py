"""`surestep schedules`."""

from typing import Annotated, Any

import tyro

from surestep.base.text import print_json
from surestep.cli import output as show
from surestep.cli.parse import command
from surestep.config.schedule import Schedule
from surestep.engine.schedule.registry import schedule_info, schedule_names
from surestep.record.io import dumps


@command("schedules")
def run(
    name: Annotated[str | None, tyro.conf.arg(metavar="SCHEDULE")] = None, /, *, json: bool = False
) -> int:
    """Show the learning-rate schedules: purpose and options of each.

    Args:
        name: Show one schedule, with all its options.
        json: Print the table as JSON.
    """
    rows = show.load_rows("schedule", name, schedule_names(), _row)
    if json:
        print_json(dumps(rows if name is None else rows[0], indent=1))
    elif name is not None:
        _print_one(rows[0])
    else:
        for row in rows:
            texts = {"for": row["purpose"], "options": ", ".join(row["options"]) or "none"}
            texts |= {"factor on the peak": row["formula"], "equal to": row["source"]}
            show.print_entry(row["name"], texts)
        print("One with its options: surestep schedules cosine. Drawn for a run:")
        print("surestep plan digits --schedule.name linear --plot rate.png")
    return 0


def _row(name: str) -> dict[str, Any]:
    entry = schedule_info(name)
    options = {
        option: {
            "default": default.value,
            "reason": default.reason,
            "about": Schedule.model_fields[option].description or "",
        }
        for option, default in entry.takes.items()
    }
    texts = {"purpose": entry.purpose, "formula": entry.formula, "source": entry.source}
    return {"name": name, **texts, "example": entry.example, "options": options}


def _print_one(row: dict[str, Any]) -> None:
    parts = ("purpose", "formula", "source", "example")
    show.print_table(row["name"], (), [(part, row[part]) for part in parts])
    if row["options"]:
        options = [
            (f"schedule.{option}", entry["about"], f"{entry['default']}: {entry['reason']}")
            for option, entry in row["options"].items()
        ]
        show.print_table("Options", ("option", "what it is", "default"), options)
