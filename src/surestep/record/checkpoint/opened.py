"""A checkpoint that was verified, and its tensors, put together from the slices they lie in."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.faults import fault
from surestep.record.checkpoint.listing import Saved, described, read_record
from surestep.record.checkpoint.manifest import MANIFEST, Manifest, Stored, read_manifest, verify
from surestep.record.checkpoint.tensors import DTYPES
from surestep.record.kinds import shown


@dataclass(frozen=True)
class Opened:
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
    def saved(self) -> Saved:
        """Its step and metrics."""
        return described(self.path, self.record)

    def tensors(self, kind: str) -> dict[str, Tensor]:
        """Read the tensors of a kind ("model", "optimizer", "average"), by name.

        Raises:
            CheckpointError: there are none of that kind, or they are not what the manifest says.
        """
        if kind not in self.manifest.tensors:
            raise CheckpointError(f"{self.path} has no tensors of the {kind}.")
        with _reading(self.path, kind), ExitStack() as stack:
            files = _Files(self.path, stack)
            stored = self.manifest.tensors[kind].items()
            return {name: files.read(name, each) for name, each in stored}


def open_checkpoint(path: Path) -> Opened:
    """Verify a checkpoint and read what it holds besides tensors.

    Raises:
        DamagedError: not what was written.
        CheckpointError: kept from us, or of a newer surestep.
    """
    manifest = verify(path)
    found = Opened(path, manifest, read_record(path, manifest))
    _check_headers(found)
    return found


def check_readable(path: Path, record: Mapping[str, Any]) -> None:
    """Check that a checkpoint whose bytes and record were verified is one that can be opened.

    Raises:
        DamagedError: it would be refused.
    """
    _check_headers(Opened(path, read_manifest(path), record))


def _check_headers(found: Opened) -> None:
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
                    raise fault(found.path, MANIFEST, f"{name!r} lies twice in {each.file}")
                within[name] = (stored.dtype, list(each.shape))
    for file, tensors in expected.items():
        with _reading(found.path, file), safe_open(found.path / file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in list(opened.keys())}
            actual = {n: (s.get_dtype(), list(s.get_shape())) for n, s in slices.items()}
        for name in actual.keys() | tensors.keys():
            if actual.get(name) != tensors.get(name):
                raise fault(
                    found.path,
                    file,
                    f"{shown(name)} is {actual.get(name, 'not there')} in it instead of "
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
        raise fault(path, file, error) from error
    except RuntimeError as error:  # torch's, where the file went while it was opened
        if path.is_dir():
            raise
        raise fault(path, file, error) from error


class _Files:
    """The files of tensors, each opened once."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.stack = stack
        self.open: dict[str, Any] = {}

    def read(self, name: str, stored: Stored) -> Tensor:
        """Read a tensor; no memory is taken for what the files do not hold."""
        pieces: list[Tensor] = [self._file(each.file).get_tensor(name) for each in stored.slices]
        if len(pieces) == 1:
            return pieces[0]
        whole = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
        for each, piece in zip(stored.slices, pieces, strict=True):
            ends = zip(each.offset, each.shape, strict=True)
            whole[tuple(slice(begin, begin + size) for begin, size in ends)] = piece
        return whole

    def _file(self, name: str) -> Any:
        if name not in self.open:
            self.open[name] = self.stack.enter_context(safe_open(self.path / name, "pt"))
        return self.open[name]
