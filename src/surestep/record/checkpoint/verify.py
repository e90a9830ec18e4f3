"""Compare the bytes of a checkpoint with its manifest on many ranks, each its share of the files.

The first rank asks, and the others answer while they wait for what it decides.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surestep.base.errors import CheckpointError, CorruptCheckpointError
from surestep.record.checkpoint.errors import CheckpointVanishedError, checkpoint_error
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    check_sizes,
    iter_file_errors,
    read_manifest,
    verify,
)
from surestep.record.io import read_regular
from surestep.record.safetensors_writer import FileDigest

if TYPE_CHECKING:
    from surestep.engine.distributed.communicator import Communicator

Check = Callable[[Path], Manifest]
_ASKED = "verify"


def make_verifier(world: Communicator) -> Check:
    """Return what verifies a checkpoint on all ranks, as `verify` does on one.

    The first rank calls it, while the others are in `answer_of_first`.
    """
    return verify if world.size == 1 else partial(_verified, world)


def wait_for_rank_zero(world: Communicator) -> Any:
    """Return what the first rank says; until then verify this rank's share of what it asks for."""
    while True:
        said = world.broadcast_json(None)
        if _ASKED not in said:
            return said
        world.all_gather_text(json.dumps(_looked(world, **said[_ASKED])))


def balance_files(files: Mapping[str, FileDigest], ranks: int) -> list[dict[str, FileDigest]]:
    """Divide files among ranks by their bytes: the largest first, to who has least until then."""
    shares: list[dict[str, FileDigest]] = [{} for _ in range(ranks)]
    load = [0] * ranks
    for name, file in sorted(files.items(), key=lambda each: (-each[1].bytes, each[0])):
        rank = load.index(min(load))
        shares[rank][name] = file
        load[rank] += file.bytes
    return shares


def _verified(world: Communicator, path: Path) -> Manifest:
    """Verify a checkpoint together with the ranks that wait for this one.

    Raises:
        DamagedError: a file that some rank has read is; all of them are named.
        CheckpointError: kept from one of them, or of another surestep's format.
    """
    manifest = read_manifest(path)
    check_sizes(path, manifest)
    world.broadcast_json({_ASKED: {"folder": str(path), "manifest": _print_of(path)}})
    own = _compared(path, balance_files(manifest.files, world.size)[0])
    _judge(path, [json.loads(text) for text in world.all_gather_text(json.dumps(own))])
    return manifest


def _looked(world: Communicator, folder: str, manifest: str) -> dict[str, Any]:
    """Return what is wrong with this rank's share of a checkpoint, of which the first one tells."""
    path = Path(folder)
    try:
        if _print_of(path) == manifest:
            return _compared(path, balance_files(read_manifest(path).files, world.size)[world.rank])
    except (CheckpointVanishedError, CorruptCheckpointError):  # the first rank has read it
        pass
    except CheckpointError as error:
        return {"kept": [str(error)]}
    return {"unseen": socket.gethostname()}


def _print_of(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path / MANIFEST)).hexdigest()
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, MANIFEST, error) from error


def _compared(path: Path, share: Mapping[str, FileDigest]) -> dict[str, Any]:
    told: dict[str, Any] = {"kept": [], "damaged": []}
    for error in iter_file_errors(path, share):
        if isinstance(error, CheckpointVanishedError):
            return {"unseen": socket.gethostname()}
        said = str(error).removeprefix(f"{path} is damaged: ").removesuffix(".")
        told["damaged" if isinstance(error, CorruptCheckpointError) else "kept"].append(said)
    return told


def _judge(path: Path, told: Sequence[Mapping[str, Any]]) -> None:
    """Raise what the ranks have found, where it is anything.

    Raises:
        GoneError: the checkpoint was deleted meanwhile.
        DamagedError: a file is damaged.
        CheckpointError: a rank cannot read it, or does not see it.
    """
    found: dict[str, list[str]] = {"kept": [], "damaged": []}
    for rank, each in enumerate(told):
        if "unseen" in each:
            if not path.is_dir():
                raise CheckpointVanishedError(f"{path} is not there: it was deleted or moved.")
            raise CheckpointError(folder_not_shared_message(path, rank, each["unseen"]))
        for kind, texts in found.items():
            texts += [f"{text} (read by rank {rank})" for text in each.get(kind, [])]
    if found["kept"]:
        raise CheckpointError(f"{'; '.join(found['kept'])}.")
    if found["damaged"]:
        raise CorruptCheckpointError(f"{path} is damaged: {'; '.join(found['damaged'])}.")


def folder_not_shared_message(path: Path, rank: int, host: str) -> str:
    """Say that a rank does not see what the first one sees, and what to type."""
    return (
        f"Rank {rank} on {host} does not see {path} as rank 0 on {socket.gethostname()} does. All "
        "of them read and write checkpoints: give a run folder that all machines share, by its "
        "whole path, with --run-folder (run= in Python)."
    )
