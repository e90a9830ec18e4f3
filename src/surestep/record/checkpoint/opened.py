"""A checkpoint that was verified, and its tensors, put together from the slices they lie in."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.faults import fault
from surestep.record.checkpoint.listing import Saved, described, read_record
from surestep.record.checkpoint.manifest import Manifest, Stored, verify
from surestep.record.checkpoint.tensors import DTYPES


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
        try:
            with ExitStack() as stack:
                files = _Files(self.path, stack)
                stored = self.manifest.tensors[kind].items()
                return {name: files.read(name, each) for name, each in stored}
        except (OSError, SafetensorError, ValueError) as error:
            raise fault(self.path, kind, error) from error


def open_checkpoint(path: Path) -> Opened:
    """Verify a checkpoint and read what it holds besides tensors.

    Raises:
        DamagedError: not what was written.
        CheckpointError: kept from us, or of a newer surestep.
    """
    return Opened(path, verify(path), read_record(path))


class _Files:
    """The files of tensors, each opened once."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.stack = stack
        self.open: dict[str, Any] = {}

    def read(self, name: str, stored: Stored) -> Tensor:
        """Read a tensor; no memory is taken for what the files do not hold.

        Raises:
            ValueError: the files hold another shape or type.
        """
        pieces: list[Tensor] = []
        for each in stored.slices:
            shape = tuple(self._file(each.file).get_slice(name).get_shape())
            if shape != each.shape:
                raise ValueError(f"{name} is {shape} in {each.file} instead of {each.shape}")
            pieces.append(self._file(each.file).get_tensor(name))
        if any(piece.dtype != DTYPES[stored.dtype] for piece in pieces):
            raise ValueError(f"{name} is not {stored.dtype} in its file")
        if len(pieces) == 1 and stored.slices[0].shape == stored.shape:
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
