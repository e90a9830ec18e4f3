"""`surestep schedules`."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.text import print_json
from surestep.cli import output as show
from surestep.cli.parse import parse
from surestep.config.schedule import Schedule
from surestep.engine.schedule.registry import schedule_info, schedule_names


@dataclass(frozen=True)
class Options:
    """Show the learning-rate schedules: purpose and options of each.

    Attributes:
        name: Show one schedule, with all its options.
        json: Print the table as JSON.
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="SCHEDULE")] = None
    json: bool = False


def run(words: list[str]) -> int:
    """Show the table of schedules, or one schedule in full."""
    parsed = parse(Options, words, "surestep schedules")
    name = parsed.name
    names = [*schedule_names()]
    if name is not None and name not in names:
        raise ConfigError(f"There is no schedule {name!r}. {suggest_names(name, names)}")
    if parsed.json:
        rows = [_row(name) for name in names]
        print_json(json.dumps(rows if name is None else _row(name), indent=1))
    elif name is not None:
        _print_one(_row(name))
    else:
        for schedule in names:
            entry = schedule_info(schedule)
            texts = {"for": entry.purpose, "options": ", ".join(entry.takes) or "none"}
            texts |= {"factor on the peak": entry.formula, "equal to": entry.source}
            show.print_entry(schedule, texts)
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
