"""`surestep ckpt list RUN`."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from surestep.cli import show
from surestep.record.checkpoint.examine import Examined, examine_all, size_on_disk
from surestep.record.checkpoint.listing import list_checkpoints, step_of
from surestep.record.files import dumps
from surestep.record.kept import why_kept
from surestep.record.run import Run
from surestep.trainer.judge import shown

READ_AT_ONCE = 2 * 2**30  # bytes: what is read within about a second


@dataclass(frozen=True)
class Options:
    """Show the checkpoints of a run: how far, measured how, whole or not, and why they are kept.

    Attributes:
        run: Run folder.
        verify: Read every byte, however many; up to 2 GiB that is done unasked.
        json: Print them as JSON.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    verify: bool = False
    json: bool = False


def run(words: list[str]) -> int:
    """Show the checkpoints of a run; the damaged ones too."""
    parsed = tyro.cli(
        Options, args=words, prog="surestep ckpt list", config=(tyro.conf.FlagCreatePairsOff,)
    )
    folder = Run(Path(parsed.run))
    size = sum(map(size_on_disk, list_checkpoints(folder.checkpoints)))
    every_byte = parsed.verify or size <= READ_AT_ONCE
    found = examine_all(folder.checkpoints, every_byte=every_byte)
    kept = why_kept(folder, [each.saved for each in found if each.saved and not each.damage])
    rows = [(each, kept.get(each.path, [])) for each in found]
    if parsed.json:
        print(dumps([_as_json(*row) for row in rows], indent=1))
    elif not rows:
        print(f"{folder.path} has no checkpoint yet.", file=sys.stderr)
    else:
        names = ("step", "epochs + samples", "metrics", "size", "age", "verified", "kept as")
        show.table(str(folder.path), names, [_row(*row) for row in rows])
    for each in found:
        if each.damage is not None:
            print(f"{each.path} {each.damage}", file=sys.stderr)
    if not every_byte and rows:
        print(
            f"The {show.byte_count(size)} were not read, only sizes, manifests and records. "
            "--verify reads them.",
            file=sys.stderr,
        )
    return 0


def _row(found: Examined, kept: list[str]) -> tuple[str, ...]:
    metrics = shown(found.saved.metrics) if found.saved else "not known"
    age = "not known" if found.written is None else show.age(time.time() - found.written)
    verified = {True: "yes", False: "damaged", None: "not looked at"}[found.verified]
    size = show.byte_count(found.bytes)
    return str(step_of(found.path)), _epochs(found), metrics, size, age, verified, ", ".join(kept)


def _epochs(found: Examined) -> str:
    if found.epoch is None:
        return "not known"
    return f"{found.epoch} + {found.position:,}" if found.position else str(found.epoch)


def _as_json(found: Examined, kept: list[str]) -> dict[str, Any]:
    said = found.saved
    return {
        "step": step_of(found.path),
        "epoch": found.epoch,
        "position": found.position,
        "metrics": said.metrics if said else None,
        "measured": said.measured if said else None,
        "bytes": found.bytes,
        "written": found.written,
        "verified": found.verified,
        "damage": found.damage,
        "kept": kept,
        "path": str(found.path),
    }
