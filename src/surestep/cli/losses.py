"""`surestep losses`."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.text import print_json
from surestep.cli import output as show
from surestep.cli.parse import parse
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
    parsed = parse(Options, words, "surestep losses")
    from surestep.engine.losses.registry import loss_docs  # imports torch

    table = {row["name"]: row for row in loss_docs()}
    name = parsed.name
    if name is not None and name not in table:
        raise ConfigError(f"There is no loss {name!r}. {suggest_names(name, table)}")
    rows = list(table.values()) if name is None else [table[name]]
    if parsed.json:
        print_json(dumps(rows if name is None else rows[0], indent=1))
        return 0
    for row in rows:
        texts = {key.replace("_", " "): row[key] for key in row if key not in ("name", "call")}
        show.print_entry(row["call"], texts)
    if name is None:
        print("A name goes into a Task with its defaults: Task(loss='huber'). With options:")
        print("Task(loss=surestep.losses.huber(delta=0.5)). One loss alone: surestep losses huber.")
    return 0
