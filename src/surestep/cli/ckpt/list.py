"""`surestep ckpt list RUN`."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from surestep.base.errors import RunError
from surestep.base.paths import require_local_path
from surestep.base.text import format_bytes, print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.parse import parse
from surestep.engine.value import shown
from surestep.record.checkpoint.discovery import (
    InspectionResult,
    examine_all,
    list_all_folders,
    no_checkpoint_message,
    size_on_disk,
)
from surestep.record.checkpoint.retention import explain_retention
from surestep.record.io import dumps
from surestep.record.run import Run

READ_AT_ONCE = 2 * 2**30  # bytes: what is read within about a second


@dataclass(frozen=True)
class Options:
    """List the checkpoints of a run: step, metrics, verification, and why each is kept.

    Attributes:
        run: Run folder.
        verify: Read every byte, whatever the size; the default reads up to 2 GiB.
        json: Print the list as JSON.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    verify: bool = False
    json: bool = False


def run(words: list[str]) -> int:
    """List the checkpoints of a run, corrupted ones too."""
    parsed = parse(Options, words, "surestep ckpt list")
    folder = Run(require_local_path(parsed.run))
    size = sum(map(size_on_disk, list_all_folders(folder.checkpoints)))
    every_byte = parsed.verify or size <= READ_AT_ONCE
    found = examine_all(folder.checkpoints, every_byte=every_byte)
    kept = _kept(folder, found)
    rows = [(each, kept.get(each.path, [])) for each in found]
    if parsed.json:
        print_json(dumps([_as_json(*row) for row in rows], indent=1))
    elif not rows:
        print_escaped(no_checkpoint_message(folder.path), file=sys.stderr)
    else:
        names = ("step", "epochs + samples", "metrics", "size", "age", "verified", "kept as")
        show.print_table(str(folder.path), names, [_row(*row) for row in rows])
    for each in found:
        for problem in each.problems:
            print_escaped(f"{each.path}: {problem}", file=sys.stderr)
    if not every_byte and rows:
        print_escaped(
            f"The {format_bytes(size)} were not read, only sizes, manifests and records. "
            "--verify reads them.",
            file=sys.stderr,
        )
    return 0


def _kept(folder: Run, found: list[InspectionResult]) -> dict[Path, list[str]]:
    """Return what each is kept as; where the plan cannot be read, say so and tell the rest."""
    try:
        saved = [each.saved for each in found if each.saved and each.good]
        return explain_retention(folder.path, folder.monitor, saved)
    except RunError as error:
        print_escaped(str(error), file=sys.stderr)
        return {}


def _row(found: InspectionResult, kept: list[str]) -> tuple[str, ...]:
    metrics = shown(found.saved.metrics) if found.saved else "not known"
    age = "not known" if found.written is None else show.format_age(time.time() - found.written)
    size, step = format_bytes(found.bytes), "not known" if found.step is None else found.step
    return str(step), _epochs(found), metrics, size, age, _verified(found), ", ".join(kept)


def _verified(found: InspectionResult) -> str:
    if found.verified is False:
        return f"damaged: {', '.join(each.partition(':')[0] for each in found.problems)}"
    if found.problems:
        return "cannot be read"
    return "yes" if found.verified else "not looked at"


def _epochs(found: InspectionResult) -> str:
    if (saved := found.saved) is None:
        return "not known"
    return f"{saved.epoch} + {saved.position:,}" if saved.position else str(saved.epoch)


def _as_json(found: InspectionResult, kept: list[str]) -> dict[str, Any]:
    said = found.saved
    return {
        "step": found.step,
        "epoch": said.epoch if said else None,
        "position": said.position if said else None,
        "metrics": said.metrics if said else None,
        "measured": said.evaluated if said else None,
        "bytes": found.bytes,
        "written": found.written,
        "verified": found.verified,
        "problems": found.problems,
        "kept": kept,
        "path": str(found.path),
    }
