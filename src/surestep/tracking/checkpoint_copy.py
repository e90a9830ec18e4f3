"""Give trackers checkpoints to upload, although retention deletes them at any time."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError
from surestep.base.files import temp_name
from surestep.record.checkpoint.manifest import MANIFEST, verify
from surestep.record.io import read_regular


@contextmanager
def copy_checkpoint(path: Path, folder: Path) -> Iterator[Path | None]:
    """Yield a verified copy of a checkpoint that nothing deletes; None if it is gone or corrupted.

    The files are hard links where the file system has them, so the copy takes no space.

    Args:
        path: the folder of the checkpoint.
        folder: of the run, in which the copy is made and removed again.
    """
    place = temp_name(folder / "trackers" / path.name, "tmp")
    shutil.rmtree(place, ignore_errors=True)
    copy = place / path.name
    copy.mkdir(parents=True)
    try:
        try:
            for file in path.iterdir():
                _link(file, copy / file.name)
            verify(copy)
        except (FileNotFoundError, CheckpointError):  # deleted meanwhile, or corrupted
            yield None
            return
        yield copy
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


def describe_checkpoint(
    path: Path, step: int, metrics: Mapping[str, float]
) -> dict[str, Any] | None:
    """Return what identifies a checkpoint that is not uploaded; None if it was deleted.

    The hash is that of its manifest, which has the hashes of all its files.
    """
    try:
        data = read_regular(path / MANIFEST)
    except (OSError, ValueError):
        return None
    return {
        "path": str(path.resolve()),
        "step": step,
        "metrics": dict(metrics),
        "manifest_sha256": hashlib.sha256(data).hexdigest(),
    }
