"""Plausible mistakes, applied in a child after the fork."""

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.torture.recipe import BATCH, SAMPLES


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _set(module: str, name: str, value: Any) -> None:
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for each in path:
        owner = getattr(owner, each)
    setattr(owner, last, value)


def _augmentation_by_history() -> None:
    _set("surestep.engine.data.sources", "seed_sample", _nothing)
    _set("surestep.engine.data.seeded_call", "seed_loading", _nothing)


def _dropout_by_history() -> None:
    _set("surestep.engine.rng", "ModelRNG.seed_for", _nothing)


def _no_scaler() -> None:
    _set("torch.amp", "GradScaler.load_state_dict", _nothing)


def _prefetched_position() -> None:
    place = importlib.import_module("surestep.engine.state.state").Progress
    own = place._asdict

    def ahead(self: Any) -> dict[str, Any]:
        return own(self._replace(position=min(self.position + BATCH, SAMPLES)))

    place._asdict = ahead


def _published_first() -> None:
    write = importlib.import_module("surestep.record.checkpoint.writer")
    write_shard, finish = write._write_shard, write._finish

    def named(folder: Path, snapshot: Any) -> Path:
        return folder.with_name(f"step-{snapshot.step:08d}")

    def under_its_name(folder: Path, snapshot: Any, **more: Any) -> Any:
        shutil.rmtree(named(folder, snapshot), ignore_errors=True)
        return write_shard(folder.rename(named(folder, snapshot)), snapshot, **more)

    def finish_there(folder: Path, snapshot: Any, *more: Any) -> Any:
        return finish(named(folder, snapshot), snapshot, *more)

    write._write_shard, write._finish = under_its_name, finish_there
    write.check_readable = _nothing
    write.publish = lambda _, final: write.fsync(final.parent)


def _deleted_first() -> None:
    write = importlib.import_module("surestep.record.checkpoint.writer")
    own = write._write_shard

    def making_room(folder: Path, snapshot: Any, **more: Any) -> Any:
        for other in folder.parent.glob("step-*"):
            shutil.rmtree(other)
        return own(folder, snapshot, **more)

    write._write_shard = making_room


def _forgotten_stretch() -> None:
    spikes = importlib.import_module("surestep.engine.state.loss_spikes").SpikeDetector
    _set("surestep.record.checkpoint.load", "_spikes", lambda **_: spikes())


BREAKAGES: dict[str, Callable[[], None]] = {
    "augmentation by history": _augmentation_by_history,
    "dropout by history": _dropout_by_history,
    "the loss scale is not loaded": _no_scaler,
    "the position of prefetched batches is saved": _prefetched_position,
    "a checkpoint has its name before its files": _published_first,
    "the old checkpoints are deleted first": _deleted_first,
    "what is left out is not loaded": _forgotten_stretch,
}
