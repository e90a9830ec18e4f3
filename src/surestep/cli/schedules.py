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
    asked = parse(Options, words, "surestep schedules")
    names = [*schedule_names()] if asked.name is None else [asked.name]
    if asked.name is not None and asked.name not in schedule_names():
        raise ConfigError(
            f"There is no schedule {asked.name!r}. {suggest_names(asked.name, schedule_names())}"
        )
    if asked.json:
        rows = [_row(name) for name in names]
        print_json(json.dumps(rows if asked.name is None else rows[0], indent=1))
    elif asked.name is None:
        show.print_entries((name, _said(name)) for name in names)
        print("One with its options: surestep schedules cosine. Drawn for a run:")
        print("surestep plan digits --schedule.name linear --plot rate.png")
    else:
        _one(asked.name)
    return 0


def _said(name: str) -> dict[str, str]:
    entry = schedule_info(name)
    takes = ", ".join(entry.takes) or "nothing"
    factor, equal = "factor on the peak", "equal to"
    return {"for": entry.purpose, "takes": takes, factor: entry.formula, equal: entry.source}


def _row(name: str) -> dict[str, Any]:
    entry = schedule_info(name)
    options = {
        option: {"default": default.value, "reason": default.reason, "about": _about(option)}
        for option, default in entry.takes.items()
    }
    texts = {"purpose": entry.purpose, "formula": entry.formula, "source": entry.source}
    return {"name": name, **texts, "example": entry.example, "options": options}


def _one(name: str) -> None:
    row = _row(name)
    parts = [(part, row[part]) for part in ("purpose", "formula", "source", "example")]
    show.print_table(name, (), parts)
    if row["options"]:
        options = [
            (f"schedule.{option}", each["about"], f"{each['default']}: {each['reason']}")
            for option, each in row["options"].items()
        ]
        show.print_table("It takes", ("option", "what it is", "where not said"), options)


def _about(option: str) -> str:
    return Schedule.model_fields[option].description or ""
