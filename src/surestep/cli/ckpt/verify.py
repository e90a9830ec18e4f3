"""`surestep ckpt verify RUN|CHECKPOINT`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from surestep.base.errors import CheckpointError
from surestep.base.text import print_escaped, print_json
from surestep.cli.parse import parse
from surestep.record.checkpoint.discovery import (
    InspectionResult,
    examine,
    list_all_folders,
    no_checkpoint_message,
)
from surestep.record.checkpoint_ref import find_folder, is_run, split_name
from surestep.record.io import dumps
from surestep.record.run import Run


@dataclass(frozen=True)
class Options:
    """Read every byte of one or all checkpoints of a run; exit code 1 if one is corrupted.

    Attributes:
        name: A run, RUN@STEP, RUN@best, RUN@last, or a checkpoint folder.
        json: Print the result as JSON.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT")]
    json: bool = False


def run(words: list[str]) -> int:
    """Read every byte of one or all checkpoints of a run."""
    parsed = parse(Options, words, "surestep ckpt verify")
    found = []
    for each in _examined(parsed.name):
        found.append(each)
        if not parsed.json:
            good = f"good, {each.bytes:,} bytes"
            for said in each.problems or (good,):
                print_escaped(f"{each.path}: {said}")
    if parsed.json:
        print_json(dumps([_as_json(each) for each in found], indent=1))
    return 0 if all(each.good for each in found) else 1


def _examined(name: str) -> Iterator[InspectionResult]:
    path, which = split_name(name)
    if which is None and is_run(path):
        run = Run(path)
        paths = list_all_folders(run.checkpoints)
        if not paths:
            raise CheckpointError(no_checkpoint_message(path))
    else:
        paths = [find_folder(name)]
    for each in paths:
        found = examine(each, every_byte=True)
        if found is not None:
            yield found


def _as_json(found: InspectionResult) -> dict[str, Any]:
    good = {"verified": found.verified, "problems": found.problems}
    return {"path": str(found.path), "bytes": found.bytes, **good}
