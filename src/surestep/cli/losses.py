"""`surestep losses`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.text import print_json
from surestep.cli import output as show
from surestep.cli.parse import parse
from surestep.engine.losses.registry import loss_docs
from surestep.record.io import dumps


@dataclass(frozen=True)
class Options:
    """Show the losses: purpose, inputs and denominator of each.

    Attributes:
        name: Show one loss in full.
        json: Print the table as JSON.
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="LOSS")] = None
    json: bool = False


def run(words: list[str]) -> int:
    """Show the table of losses, or one loss in full."""
    asked = parse(Options, words, "surestep losses")
    table = rows = loss_docs()
    if asked.name is not None:
        rows = [row for row in rows if row["name"] == asked.name]
        if not rows:
            names = [row["name"] for row in table]
            raise ConfigError(
                f"There is no loss {asked.name!r}. {suggest_names(asked.name, names)}"
            )
    if asked.json:
        print_json(dumps(rows if asked.name is None else rows[0], indent=1))
        return 0
    show.print_entries((row["call"], _said(row)) for row in rows)
    if asked.name is None:
        print("A name goes into a Task with its defaults: Task(loss='huber'). With options:")
        print("Task(loss=surestep.losses.huber(delta=0.5)). One loss alone: surestep losses huber.")
    return 0


def _said(row: Mapping[str, str]) -> dict[str, str]:
    apart = ("name", "call")
    return {part.replace("_", " "): text for part, text in row.items() if part not in apart}
