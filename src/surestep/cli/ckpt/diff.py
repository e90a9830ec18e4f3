"""`surestep ckpt diff A B`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.parse import parse
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.checkpoint_ref import find_folder
from surestep.record.io import dumps

if TYPE_CHECKING:  # torch is imported to compare tensors
    from surestep.record.checkpoint.diff import ChangedTensor, CheckpointDiff

ROWS = 20  # tensors that are shown unasked
WIDTH = 60  # characters of a value that are shown
CALLED = {"callback_states": "callback_states", "buffers": "buffers that the state_dict leaves out"}


@dataclass(frozen=True)
class Options:
    """Show what changed between two checkpoints.

    The exit code is 0 if nothing changed, 1 if something did, 2 if one is corrupted or missing.

    Attributes:
        a: RUN@STEP, RUN@best, RUN@last or a checkpoint folder; RUN means RUN@best.
        b: The other checkpoint.
        all: Show every tensor, instead of the 20 of each kind that changed most.
        json: Print the differences as JSON.
    """

    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    all: bool = False
    json: bool = False


def run(words: list[str]) -> int:
    """Show what changed between two checkpoints."""
    parsed = parse(Options, words, "surestep ckpt diff")
    folders = [find_folder(each) for each in (parsed.a, parsed.b)]
    from surestep.record.checkpoint.diff import differences

    found = differences(*map(open_checkpoint, folders))
    if parsed.json:
        print_json(dumps({"a": str(folders[0]), "b": str(folders[1]), **_as_json(found)}, indent=1))
        return 0 if found.same else 1
    print_escaped(f"A is {folders[0]}\nB is {folders[1]}", file=sys.stderr)
    if found.values:
        rows = [(each.name, _short(each.before), _short(each.now)) for each in found.values]
        show.print_table("What is no tensor", ("what", "A", "B"), rows)
    apart = [(each.kind, each.name, f"only in {each.side}", "") for each in found.only]
    apart += [(each.kind, each.name, each.before, each.now) for each in found.reshaped]
    if apart:
        show.print_table("Tensors that have no equal", ("kind", "tensor", "A", "B"), apart)
    kinds = {each.kind for each in found.moved}
    for kind in sorted(kinds, key=lambda kind: (kind != "model", kind)):
        moved = [each for each in found.moved if each.kind == kind]
        _show(kind, moved, len(moved) if parsed.all else ROWS)
    print_escaped(f"{found.equal} tensors are bit for bit the same, {len(found.moved)} changed.")
    return 0 if found.same else 1


def _show(kind: str, moved: list[ChangedTensor], limit: int) -> None:
    columns = ("tensor", "elements changed", "largest", "relative")
    rows = [
        (
            *(each.name, f"{each.changed:,} of {each.elements:,}"),
            *(f"{each.largest:.3g}", f"{each.relative:.3g}"),
        )
        for each in moved[:limit]
    ]
    called = CALLED.get(kind, kind)
    show.print_table(
        f"Changed in the {called}: |B - A|, and its norm over that of A", columns, rows
    )
    if limit < len(moved):
        print_escaped(f"and {len(moved) - limit} more: --all shows them", file=sys.stderr)


def _short(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else dumps(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 4]} ..."


def _as_json(found: CheckpointDiff) -> dict[str, Any]:
    listed = {
        part: [each._asdict() for each in getattr(found, part)]
        for part in ("values", "only", "reshaped", "moved")
    }
    return {"same": found.same, "equal_tensors": found.equal, **listed}
