"""`surestep losses`."""

from typing import Annotated

import tyro

from surestep.base.text import print_json
from surestep.cli import output as show
from surestep.cli.parse import command
from surestep.record.io import dumps


@command("losses")
def run(
    name: Annotated[str | None, tyro.conf.arg(metavar="LOSS")] = None, /, *, json: bool = False
) -> int:
    """Show the losses: purpose, inputs and denominator of each.

    Args:
        name: Show one loss in full.
        json: Print the table as JSON.
    """
    from surestep.engine.losses.registry import loss_doc, loss_names  # imports torch

    rows = show.load_rows("loss", name, loss_names(), loss_doc)
    if json:
        print_json(dumps(rows if name is None else rows[0], indent=1))
        return 0
    for row in rows:
        texts = {key.replace("_", " "): row[key] for key in row if key not in ("name", "call")}
        show.print_entry(row["call"], texts)
    if name is None:
        print("A name goes into a Task with its defaults: Task(loss='huber'). With options:")
        print("Task(loss=surestep.losses.huber(delta=0.5)). One loss alone: surestep losses huber.")
    return 0
