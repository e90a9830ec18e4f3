"""Write a checkpoint from many ranks at once, each its own files into one folder.

The first rank makes the folder; each writes, syncs and reads back what it has; the first one puts
together what they tell, writes the manifest and gives the folder its name, when all are done. What
goes wrong on one of them is told to all, and there is no checkpoint then. They talk over a group
that nobody else uses, since this happens in a thread beside the one that trains.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError, ParallelError
from surestep.engine.parallel.world import World
from surestep.record.checkpoint.listing import Saved, described, taken
from surestep.record.checkpoint.manifest import MANIFEST, RECORD, Manifest, Slice, Stored
from surestep.record.checkpoint.opened import check_readable
from surestep.record.checkpoint.parts import Box
from surestep.record.checkpoint.snapshot import Snapshot
from surestep.record.checkpoint.tensors import File, name_of
from surestep.record.checkpoint.write import make, publish
from surestep.record.checkpoint.written import Written
from surestep.record.files import disk_hint
from surestep.record.leftovers import half_done

_MOST = 3  # ranks whose trouble is told


def take_together(take: Callable[[], Snapshot], world: World) -> Snapshot:
    """Take a snapshot on all ranks; where one of them cannot, none has any.

    Raises:
        CheckpointError: a part of the state has no plain form, here or on another rank.
    """
    if world.size == 1:
        return take()
    try:
        snapshot = take()
    except CheckpointError as error:
        world.texts(str(error))
        raise
    for rank, text in enumerate(world.texts("")):
        if text:
            raise CheckpointError(f"Rank {rank} cannot be saved: {text}")
    return snapshot


def write_together(folder: Path, snapshot: Snapshot, world: World) -> Saved:
    """Write a snapshot of many ranks as `folder/step-XXXXXXXX`; return what it says of itself.

    All ranks call this, and all of them return or raise; the metrics are told to the first alone.
    It has its name only after every byte was synced and read back.

    Args:
        folder: of the checkpoints, which all ranks see.
        snapshot: what this rank writes.
        world: the ranks, over a group that nobody else uses meanwhile.

    Raises:
        CheckpointError: on one of them the disk is full, cannot be written, or gives back other
            bytes; or a rank is gone.
    """
    final = folder / f"step-{snapshot.step:08d}"
    temporary = half_done(final, "tmp")  # of the first rank, which tells it to the others
    try:
        made = _agreed(world, final, lambda: _made(temporary) if world.is_first else "")
        temporary = final.with_name(json.loads(made[0])["said"])
        texts = _agreed(world, final, lambda: _written(temporary, snapshot, world.rank))
        _agreed(world, final, lambda: _finished(temporary, final, snapshot, texts, world))
    except BaseException:
        if world.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if not world.is_first:
        return Saved(snapshot.step, {}, final)
    return described(final, taken(final, snapshot.record, snapshot.step))


def _agreed(world: World, final: Path, act: Callable[[], Any]) -> list[str]:
    """Act on each rank, and return what all of them tell; the trouble of one is that of all.

    Raises:
        CheckpointError: one of them met trouble.
    """
    raised: BaseException | None = None
    told: dict[str, Any] = {}
    try:
        told = {"said": act()}
    except OSError as error:
        raised, told = error, {"errno": error.errno, "strerror": error.strerror or str(error)}
    except CheckpointError as error:
        raised, told = error, {"error": str(error)}
    except BaseException as error:  # no trouble of the disk's: this rank ends with it
        _texts(world, final, {"error": repr(error)})
        raise
    texts = _texts(world, final, told)
    _check(final, [json.loads(text) for text in texts], raised)
    return texts


def _texts(world: World, final: Path, told: Mapping[str, Any]) -> list[str]:
    try:
        return world.texts(json.dumps(told))
    except (RuntimeError, ParallelError) as error:  # torch has no other where somebody is missing
        raise CheckpointError(
            f"{final} could not be written: not every rank answered: {error}. The checkpoints "
            "before it are as they were."
        ) from error


def _check(final: Path, told: Sequence[Mapping[str, Any]], raised: BaseException | None) -> None:
    """Raise on all ranks the same, with the words of those that met trouble.

    Raises:
        CheckpointError: one did.
    """
    bad = {rank: each for rank, each in enumerate(told) if "said" not in each}
    if not bad:
        return
    said = [
        f"rank {rank}: {each.get('strerror') or each['error']}"
        for rank, each in list(bad.items())[:_MOST]
    ]
    more = f"; and {len(bad) - _MOST} more" if len(bad) > _MOST else ""
    of_disk = next((each for each in bad.values() if "strerror" in each), None)
    cause, hint = raised, ""
    if of_disk is not None:
        cause = OSError(of_disk["errno"], of_disk["strerror"])
        hint = f" {disk_hint(cause)}"
    raise CheckpointError(
        f"{final} could not be written: {'; '.join(said)}{more}. The checkpoints before it are as "
        f"they were.{hint}"
    ) from cause


def _made(temporary: Path) -> str:
    make(temporary)
    return temporary.name


def _written(folder: Path, snapshot: Snapshot, rank: int) -> dict[str, Any]:
    """Write, sync and read back what this rank has; return what the manifest is to say of it."""
    tensors: dict[str, dict[str, Any]] = {}
    with Written(folder) as written:
        if rank == 0:
            written.write(RECORD, [snapshot.record])
        for kind, named in snapshot.layout.buffers.items():
            written.write(_file(kind, rank), snapshot.layout.of(kind).parts)
            tensors[kind] = {
                name: [
                    name_of(name, each.dtype),
                    list(each.shape),
                    *_place(snapshot.boxes[kind][name]),
                ]
                for name, each in named.items()
            }
        written.sync()
        written.check()
    return {"files": written.files, "tensors": tensors}


def _file(kind: str, rank: int) -> str:
    return f"{kind}.rank-{rank:05d}.safetensors"


def _place(box: Box) -> tuple[list[int], list[int]]:
    return list(box.whole), list(box.offset)


def _finished(
    temporary: Path, final: Path, snapshot: Snapshot, texts: Sequence[str], world: World
) -> None:
    """Write the manifest and give the folder its name, on the first rank."""
    if not world.is_first:
        return
    parts = [json.loads(each)["said"] for each in texts]
    record = taken(temporary, snapshot.record, snapshot.step)
    text = merged(snapshot.step, parts).text()
    with Written(temporary) as written:
        written.write(MANIFEST, [text.encode()])
        written.sync()
        written.check()
    check_readable(temporary, record)
    publish(temporary, final)


def merged(step: int, parts: Sequence[Mapping[str, Any]]) -> Manifest:
    """Return the manifest of a checkpoint from what each rank has written of it.

    Raises:
        CheckpointError: ranks say different things of one tensor.
    """
    files: dict[str, File] = {}
    tensors: dict[str, dict[str, Stored]] = {}
    for rank, part in enumerate(parts):
        files |= {name: File(*each) for name, each in part["files"].items()}
        for kind, named in part["tensors"].items():
            known = tensors.setdefault(kind, {})
            file = _file(kind, rank)
            for name, (dtype, shape, whole, offset) in named.items():
                piece = Slice(file, tuple(offset), tuple(shape))
                before = known.get(name) or Stored(dtype, tuple(whole), ())
                if before[:2] != (dtype, tuple(whole)):
                    raise CheckpointError(
                        f"rank {rank} has {name} as {dtype} of {tuple(whole)}, and another as "
                        f"{before.dtype} of {before.shape}"
                    )
                known[name] = before._replace(slices=(*before.slices, piece))
    return Manifest(step, files, tensors)
