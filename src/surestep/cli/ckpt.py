"""`surestep ckpt COMMAND`: inspect checkpoints. No code of the run is executed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from surestep.base.errors import CheckpointError, RunError
from surestep.base.paths import is_address, require_local_path, split_address
from surestep.base.text import format_bytes, print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.main import run_subcommand
from surestep.cli.mirrored import open_mirrored
from surestep.cli.parse import command
from surestep.engine.value import shown
from surestep.mirror.outline import examine_mirror
from surestep.record.checkpoint.discovery import (
    InspectionResult,
    examine,
    examine_all,
    list_all_folders,
    list_checkpoints,
    no_checkpoint_message,
    size_on_disk,
)
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.checkpoint.retention import explain_retention
from surestep.record.checkpoint_ref import find_folder, is_run, resolve_checkpoint, split_name
from surestep.record.export import ENDINGS, ExportResult, export
from surestep.record.io import check_output, dumps
from surestep.record.run import Run

if TYPE_CHECKING:  # torch is imported to compare tensors
    from surestep.record.checkpoint.diff import ChangedTensor

READ_AT_ONCE = 2 * 2**30  # bytes: what is read within about a second
ROWS = 20  # tensors of a kind that a diff shows without --all
WIDTH = 60  # characters of a value that a diff shows


@command("ckpt list")
def list_run(
    folder: Annotated[str, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    verify: bool = False,
    json: bool = False,
) -> int:
    """List the checkpoints of a run: step, metrics, verification, and why each is kept.

    Args:
        folder: Run folder, or the address of a mirror.
        verify: Read every byte, whatever the size; the default reads up to 2 GiB.
        json: Print the list as JSON.
    """
    if is_address(folder):
        with open_mirrored(folder) as mirrored:
            run, shown = mirrored.run, mirrored.shown
            found = list(
                examine_mirror(mirrored.store, list_checkpoints(run.checkpoints), every_byte=verify)
            )
            return _print_list(run, found, folder, shown, every_byte=verify, as_json=json)
    run = Run(Path(folder))
    size = sum(map(size_on_disk, list_all_folders(run.checkpoints)))
    every_byte = verify or size <= READ_AT_ONCE
    found = examine_all(run.checkpoints, every_byte=every_byte)
    return _print_list(run, found, str(run.path), str, every_byte=every_byte, as_json=json)


def _print_list(
    run: Run,
    found: list[InspectionResult],
    title: str,
    shown: Callable[[Path], str],
    *,
    every_byte: bool,
    as_json: bool,
) -> int:
    """Print the checkpoints of a run; `shown` returns how a path is printed."""
    kept = _explain_retention(run, found)
    if as_json:
        listed = [
            {
                **_list_json(checkpoint, kept.get(checkpoint.path, [])),
                "path": shown(checkpoint.path),
            }
            for checkpoint in found
        ]
        print_json(dumps(listed, indent=1))
    elif not found:
        print_escaped(no_checkpoint_message(Path(title)), file=sys.stderr)
    else:
        names = ("step", "epochs + samples", "metrics", "size", "age", "verified", "kept as")
        rows = [_list_row(checkpoint, kept.get(checkpoint.path, [])) for checkpoint in found]
        show.print_table(title, names, rows)
    for checkpoint in found:
        for problem in checkpoint.problems:
            print_escaped(f"{shown(checkpoint.path)}: {problem}", file=sys.stderr)
    if not every_byte and found:
        size = sum(checkpoint.bytes for checkpoint in found)
        print_escaped(
            f"The {format_bytes(size)} were not read, only sizes, manifests and records. "
            "--verify reads them.",
            file=sys.stderr,
        )
    return 0


def _explain_retention(run: Run, found: list[InspectionResult]) -> dict[Path, list[str]]:
    """Return why each is kept; if the plan cannot be read, print that and list the rest."""
    try:
        saved = [checkpoint.saved for checkpoint in found if checkpoint.saved and checkpoint.good]
        return explain_retention(run.path, run.monitor, saved)
    except RunError as error:
        print_escaped(str(error), file=sys.stderr)
        return {}


def _list_row(found: InspectionResult, kept: list[str]) -> tuple[str, ...]:
    verified = "yes" if found.verified else "not read"
    if found.verified is False:
        verified = f"damaged: {', '.join(problem.partition(':')[0] for problem in found.problems)}"
    elif found.problems:
        verified = "cannot be read"
    epochs = "not known"
    if (saved := found.saved) is not None:
        epochs = f"{saved.epoch} + {saved.position:,}" if saved.position else str(saved.epoch)
    return (
        "not known" if found.step is None else str(found.step),
        epochs,
        shown(saved.metrics) if saved else "not known",
        format_bytes(found.bytes),
        "not known" if found.written is None else show.format_age(time.time() - found.written),
        verified,
        ", ".join(kept),
    )


def _list_json(found: InspectionResult, kept: list[str]) -> dict[str, Any]:
    saved = found.saved
    return {
        "step": found.step,
        "epoch": saved.epoch if saved else None,
        "position": saved.position if saved else None,
        "metrics": saved.metrics.with_tables() if saved else None,
        "measured": saved.evaluated if saved else None,
        "bytes": found.bytes,
        "written": found.written,
        "verified": found.verified,
        "problems": found.problems,
        "kept": kept,
        "path": str(found.path),
    }


@command("ckpt verify")
def verify(
    name: Annotated[str, tyro.conf.arg(metavar="RUN|CHECKPOINT")], /, *, json: bool = False
) -> int:
    """Read every byte of one or all checkpoints of a run; exit code 1 if one is corrupted.

    Args:
        name: A run, RUN@STEP, RUN@best, RUN@last, or a checkpoint folder. RUN can be the address
            of a mirror.
        json: Print the result as JSON.
    """
    if is_address(name):
        return _verify_mirror(name, as_json=json)
    path, which = split_name(name)
    if which is None and is_run(path):
        folders = list_all_folders(Run(path).checkpoints)
        if not folders:
            raise CheckpointError(no_checkpoint_message(path))
    else:
        folders = [find_folder(name)]
    found = (examine(folder, every_byte=True) for folder in folders)
    return _print_verified(filter(None, found), str, as_json=json)


def _verify_mirror(name: str, *, as_json: bool) -> int:
    """Read every byte of one or all checkpoints in a mirror."""
    address, which = split_address(name)
    with open_mirrored(address) as mirrored:
        run = mirrored.run
        paths = list_checkpoints(run.checkpoints)
        if which is not None:
            paths = [run.folder_of(which) if isinstance(which, int) else run.saved(which).path]
        if not paths:
            raise CheckpointError(f"{address} has no checkpoint yet.")
        found = examine_mirror(mirrored.store, paths, every_byte=True)
        return _print_verified(found, mirrored.shown, as_json=as_json)


def _print_verified(
    found: Iterable[InspectionResult], shown: Callable[[Path], str], *, as_json: bool
) -> int:
    """Print what was found, each as soon as it is known; return the exit code."""
    rows, is_good = [], True
    for checkpoint in found:
        path, is_good = shown(checkpoint.path), is_good and checkpoint.good
        rows.append({key: getattr(checkpoint, key) for key in ("bytes", "verified", "problems")})
        rows[-1] = {"path": path, **rows[-1]}
        if not as_json:
            for problem in checkpoint.problems or (f"good, {checkpoint.bytes:,} bytes",):
                print_escaped(f"{path}: {problem}")
    if as_json:
        print_json(dumps(rows, indent=1))
    return 0 if is_good else 1


@command("ckpt export")
def export_weights(
    checkpoint: Annotated[str, tyro.conf.arg(metavar="CHECKPOINT")],
    out: Annotated[str, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    average: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> int:
    """Write the weights and buffers of a checkpoint to one file for plain PyTorch.

    Args:
        checkpoint: RUN@STEP, RUN@best, RUN@last or a checkpoint folder; RUN means RUN@best,
            which exports what was evaluated: the weights or their average.
        out: File to write: .safetensors, or .pt for torch.load with weights_only=True.
        average: Export the averaged weights.
        overwrite: Replace an existing file.
        json: Print the result as JSON.
    """
    path = require_local_path(out)
    check_output(path, ENDINGS, overwrite=overwrite)
    chosen, run = resolve_checkpoint(checkpoint)
    exported = export(
        chosen.opened,
        path,
        run=None if run is None else run.name,
        average=average or chosen.average,
        overwrite=overwrite,
    )
    _print_missing(exported)
    if json:
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
    print_escaped(str(path))
    return 0


def _print_missing(exported: ExportResult) -> None:
    """Print the tensors that a model needs and the file lacks."""
    if exported.lacks:
        print_escaped(
            "The file has only the trained weights, as the checkpoint does: "
            f"{len(exported.lacks)} tensors of the frozen base are missing: "
            f"{_first_names(exported.lacks)}. Build the "
            "model with its base, and then call model.load_state_dict(weights, strict=False).",
            file=sys.stderr,
        )
    if exported.left_out:
        print_escaped(
            "Training changed buffers with persistent=False, which a state dict does not hold: "
            f"{_first_names(exported.left_out)}. Load them with "
            "surestep.Run(path).load_model(model), or register them with persistent=True.",
            file=sys.stderr,
        )


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


@command("ckpt diff")
def diff(
    a: Annotated[str, tyro.conf.arg(metavar="A")],
    b: Annotated[str, tyro.conf.arg(metavar="B")],
    /,
    *,
    all: bool = False,
    json: bool = False,
) -> int:
    """Show what changed between two checkpoints.

    The exit code is 0 if nothing changed, 1 if something did, 2 if one is corrupted or missing.

    Args:
        a: RUN@STEP, RUN@best, RUN@last or a checkpoint folder; RUN means RUN@best.
        b: The other checkpoint.
        all: Show every tensor, instead of the 20 of each kind that changed most.
        json: Print the differences as JSON.
    """
    folder_a, folder_b = find_folder(a), find_folder(b)
    from surestep.record.checkpoint.diff import differences

    found = differences(open_checkpoint(folder_a), open_checkpoint(folder_b))
    if json:
        parts = ("values", "unmatched", "changed")
        lists = {part: [entry._asdict() for entry in getattr(found, part)] for part in parts}
        folders = {"a": str(folder_a), "b": str(folder_b)}
        counts = {"same": found.same, "equal_tensors": found.equal}
        print_json(dumps({**folders, **counts, **lists}, indent=1))
        return 0 if found.same else 1
    print_escaped(f"A is {folder_a}\nB is {folder_b}", file=sys.stderr)
    if found.values:
        values = [
            (value.name, _shorten(value.before), _shorten(value.now)) for value in found.values
        ]
        show.print_table("Values that are not tensors", ("what", "A", "B"), values)
    apart = [(t.kind, t.name, t.before or "", t.now or "") for t in found.unmatched]
    if apart:
        title = "Tensors in one only, or of another shape or type"
        show.print_table(title, ("kind", "tensor", "A", "B"), apart)
    kinds = {entry.kind for entry in found.changed}
    for kind in sorted(kinds, key=lambda kind: (kind != "model", kind)):
        moved = [entry for entry in found.changed if entry.kind == kind]
        _print_changed(kind, moved, len(moved) if all else ROWS)
    print_escaped(f"{found.equal} tensors are bitwise identical, {len(found.changed)} changed.")
    return 0 if found.same else 1


def _print_changed(kind: str, moved: list[ChangedTensor], limit: int) -> None:
    rows = [
        (
            *(tensor.name, f"{tensor.changed:,} of {tensor.elements:,}"),
            *(f"{tensor.largest:.3g}", f"{tensor.relative:.3g}"),
        )
        for tensor in moved[:limit]
    ]
    called = "buffers that the state_dict leaves out" if kind == "buffers" else kind
    title = f"Changed in the {called}: |B - A|, and its norm over that of A"
    show.print_table(title, ("tensor", "elements changed", "largest", "relative"), rows)
    if limit < len(moved):
        print_escaped(f"and {len(moved) - limit} more: --all shows them", file=sys.stderr)


def _shorten(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else dumps(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 4]} ..."


_COMMANDS = {
    "list": "list RUN: list checkpoints with metrics, verification, and why each is kept",
    "verify": "verify RUN|CHECKPOINT: read every byte; exit code 1 if one is corrupted",
    "export": "export CHECKPOINT OUT: write the weights to a .safetensors or .pt file",
    "diff": "diff A B: show what changed; exit code 0 if nothing did, 1 if something did",
}
_RUN = {"list": list_run, "verify": verify, "export": export_weights, "diff": diff}


def run(words: list[str]) -> int:
    """Run one of the commands."""
    note = "CHECKPOINT is RUN@STEP, RUN@best, RUN@last or a checkpoint folder; RUN means RUN@best."
    return run_subcommand("ckpt", _COMMANDS, _RUN, words, note)
