"""`surestep ckpt export CHECKPOINT OUT`."""

import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from surestep.base.paths import require_local_path
from surestep.base.text import format_bytes, print_escaped, print_json
from surestep.cli.parse import parse
from surestep.record.checkpoint_ref import resolve_checkpoint
from surestep.record.export import ENDINGS, ExportResult, export
from surestep.record.io import check_output, dumps


@dataclass(frozen=True)
class Options:
    """Write the weights and buffers of a checkpoint to one file for plain PyTorch.

    Attributes:
        checkpoint: RUN@STEP, RUN@best, RUN@last or a checkpoint folder; RUN means RUN@best,
            which exports what was evaluated: the weights or their average.
        out: File to write: .safetensors, or .pt for torch.load with weights_only=True.
        average: Export the averaged weights.
        overwrite: Replace an existing file.
        json: Print the result as JSON.
    """

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    average: bool = False
    overwrite: bool = False
    json: bool = False


def run(words: list[str]) -> int:
    """Write the weights of a checkpoint to one file."""
    parsed = parse(Options, words, "surestep ckpt export")
    out = require_local_path(parsed.out)
    check_output(out, ENDINGS, overwrite=parsed.overwrite)
    chosen, folder = resolve_checkpoint(parsed.checkpoint)
    exported = export(
        chosen.opened,
        out,
        run=None if folder is None else folder.name,
        average=parsed.average or chosen.average,
        overwrite=parsed.overwrite,
    )
    if exported.lacks:
        print_escaped(_base_is_needed(exported), file=sys.stderr)
    if parsed.json:
        paths = {"path": str(exported.path), "checkpoint": str(exported.checkpoint)}
        print_json(dumps({**asdict(exported), **paths}))
        return 0
    what = "averaged weights" if exported.average else "weights"
    tied = f", {exported.tied} of them tied" if exported.tied else ""
    print_escaped(
        f"The {what} of step {exported.step}: {exported.tensors} tensors{tied}, "
        f"{format_bytes(exported.bytes)}",
        file=sys.stderr,
    )
    print_escaped(str(out))
    return 0


def _base_is_needed(exported: ExportResult) -> str:
    some, more = exported.lacks[:3], len(exported.lacks) - 3
    named = ", ".join(some) + (f" and {more} more" if more > 0 else "")
    return (
        f"This is what was trained. {len(exported.lacks)} tensors of the frozen base are not in "
        f"the checkpoint, and not in this file: {named}. Build the model with its base, then "
        "model.load_state_dict(weights, strict=False)."
    )
