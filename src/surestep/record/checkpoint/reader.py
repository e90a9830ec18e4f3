"""A checkpoint that was verified, and its tensors, put together from the slices they lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import Sizes, distribute_like, is_sharded, shard_extent
from surestep.record.checkpoint.errors import checkpoint_error, lacks_memory
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    TensorEntry,
    read_manifest,
    verify,
)
from surestep.record.checkpoint.state_json import CheckpointInfo, info_from_record, read_record
from surestep.record.safetensors_writer import dtype_of
from surestep.record.schema import format_value

if TYPE_CHECKING:  # commands that only look at a checkpoint start without torch
    from torch import Tensor

_NOTHING: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class CheckpointReader:
    """A checkpoint whose every byte is what was written.

    Attributes:
        path: its folder.
        manifest: what it is made of.
        record: what it holds besides tensors.
    """

    path: Path
    manifest: Manifest
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.path.name

    @property
    def saved(self) -> CheckpointInfo:
        """Its step and metrics."""
        return info_from_record(self.path, self.record)

    def tensors(self, kind: str, like: Mapping[str, Tensor] = _NOTHING) -> dict[str, Tensor]:
        """Read the tensors of a kind ("model", "optimizer", "average"), by name.

        Args:
            kind: of the tensors.
            like: by name, what they are for. Where ranks share one of the same shape, this rank's
                box alone is read, and laid out like it.

        Raises:
            CheckpointError: there are none of that kind, or they are not what the manifest says.
        """
        with self.open_tensors(kind) as read:
            return {name: read(name, like.get(name)) for name in self.entries(kind)}

    def entries(self, kind: str) -> Mapping[str, TensorEntry]:
        """Return what the manifest says of the tensors of a kind, by name.

        Raises:
            CheckpointError: there are none of that kind.
        """
        if kind not in self.manifest.tensors:
            raise CheckpointError(f"{self.path} has no tensors of the {kind}.")
        return self.manifest.tensors[kind]

    @contextmanager
    def open_tensors(self, kind: str) -> Iterator[Callable[[str, Tensor | None], Tensor]]:
        """Yield what reads one tensor of a kind by name, laid out like another (see `tensors`).

        Raises:
            CheckpointError: they are not what the manifest says.
        """
        stored = self.entries(kind)
        with ExitStack() as stack:
            files = _OpenFiles(self.path, stack)

            def read(name: str, like: Tensor | None) -> Tensor:
                each = stored[name]
                with _reading(self.path, kind):
                    if is_sharded(like) and tuple(like.shape) == each.shape:
                        offset, shape, _ = shard_extent(like)
                        return distribute_like(like, files.box(name, each, (offset, shape)))
                    return files.read(name, each)

            yield read


def open_checkpoint(
    path: Path, *, check: Callable[[Path], Manifest] | None = None
) -> CheckpointReader:
    """Verify a checkpoint and read what it holds besides tensors.

    Args:
        path: its folder.
        check: reads its manifest, and compares every byte, as `verify` does where none is given;
            `read_manifest` where the ranks have just done so together.

    Raises:
        DamagedError: not what was written.
        CheckpointError: kept from us, or of a newer surestep.
    """
    manifest = (check or verify)(path)
    found = CheckpointReader(path, manifest, read_record(path, manifest))
    _check_headers(found)
    return found


def check_readable(path: Path, record: Mapping[str, Any]) -> None:
    """Check that a checkpoint whose bytes and record were verified is one that can be opened.

    Raises:
        DamagedError: it would be refused.
    """
    _check_headers(CheckpointReader(path, read_manifest(path), record))


def _check_headers(found: CheckpointReader) -> None:
    """Check that the files of tensors hold what the manifest says, and nothing else.

    Raises:
        DamagedError: one does not.
    """
    expected: dict[str, dict[str, tuple[str, list[int]]]] = {}
    for named in found.manifest.tensors.values():
        for name, stored in named.items():
            for each in stored.slices:
                within = expected.setdefault(each.file, {})
                if name in within:
                    raise checkpoint_error(
                        found.path, MANIFEST, f"{name!r} lies twice in {each.file}"
                    )
                within[name] = (stored.dtype, list(each.shape))
    for file, tensors in expected.items():
        with _reading(found.path, file), safe_open(found.path / file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in list(opened.keys())}
            actual = {n: (s.get_dtype(), list(s.get_shape())) for n, s in slices.items()}
        for name in actual.keys() | tensors.keys():
            if actual.get(name) != tensors.get(name):
                raise checkpoint_error(
                    found.path,
                    file,
                    f"{format_value(name)} is {actual.get(name, 'not there')} in it instead of "
                    f"{tensors.get(name, 'not there')}",
                )


@contextmanager
def _reading(path: Path, file: str) -> Iterator[None]:
    """Tell what is wrong with a file of tensors where it cannot be read within.

    Raises:
        CheckpointError: it cannot.
    """
    try:
        yield
    except (OSError, SafetensorError, ValueError) as error:
        raise checkpoint_error(path, file, error) from error
    except (RuntimeError, MemoryError) as error:  # torch's, where the file went while it was opened
        if path.is_dir() and not lacks_memory(error):
            raise
        raise checkpoint_error(path, file, error) from error


class _OpenFiles:
    """The files of tensors, each opened once."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.stack = stack
        self.open: dict[str, Any] = {}

    def read(self, name: str, stored: TensorEntry) -> Tensor:
        """Read a tensor; in one piece it is the file itself, of which nothing was copied yet."""
        if len(stored.slices) == 1:
            only: Tensor = self._file(stored.slices[0].file).get_tensor(name)
            return only
        return self.box(name, stored, (tuple(0 for _ in stored.shape), stored.shape))

    def box(self, name: str, stored: TensorEntry, box: tuple[Sizes, Sizes]) -> Tensor:
        """Read a box of a tensor, from an offset and of a shape, out of those that it lies in."""
        import torch

        offset, shape = box
        found = torch.empty(shape, dtype=dtype_of(stored.dtype))
        for each in stored.slices:
            ends = zip(offset, shape, each.offset, each.shape, strict=True)
            common = [(max(a, b), min(a + n, b + m)) for a, n, b, m in ends]
            if any(begin >= end for begin, end in common):
                continue
            here, there = (
                tuple(
                    slice(begin - at, end - at) for (begin, end), at in zip(common, of, strict=True)
                )
                for of in (offset, each.offset)
            )
            file = self._file(each.file)
            found[here] = file.get_slice(name)[there] if there else file.get_tensor(name)
        return found

    def _file(self, name: str) -> Any:
        if name not in self.open:
            self.open[name] = self.stack.enter_context(safe_open(self.path / name, "pt"))
        return self.open[name]
