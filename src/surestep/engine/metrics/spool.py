"""Rows of tensors, batch after batch: in memory up to a limit, in temporary files beyond it."""

import tempfile
import weakref
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surestep.base.errors import RunError
from surestep.engine.losses.base import at_least_fp32

# What stays in memory, in bytes; a judgement: it holds a million rows of 64 fp32 numbers.
LIMIT = 256 * 2**20


class Spool:
    """Columns to which rows are appended; each column is an array at the end.

    Up to `limit` bytes stay in memory. Beyond it every column is in a temporary file, which has no
    name in its folder: the system removes it when the process ends, whatever ends it.

    Args:
        limit: bytes of all columns together that stay in memory; None is `LIMIT`.
        folder: of the temporary files; None is that of `tempfile`, which TMPDIR sets.
    """

    def __init__(self, limit: int | None = None, folder: Path | None = None) -> None:
        self.limit = LIMIT if limit is None else limit
        self.folder = folder
        self.is_on_disk = False
        self._size = 0
        self._columns: dict[str, _Column] = {}

    @property
    def names(self) -> list[str]:
        """The columns, in the order in which they appeared."""
        return list(self._columns)

    def mismatch(self, name: str, tensor: Tensor) -> str:
        """Return how rows differ from those of the column so far; "" if they do not."""
        column = self._columns.get(name)
        shape, kind = tuple(tensor.shape[1:]), at_least_fp32(tensor[:0]).dtype
        if column is None or (column.row_shape, column.kind) == (shape, kind):
            return ""
        if column.row_shape != shape:
            return f"rows of shape {column.row_shape} in one batch and {shape} in another"
        return f"numbers of {column.kind} in one batch and {kind} in another"

    def rows(self, name: str) -> int:
        """Return how many rows a column has."""
        return self._columns[name].rows

    def layout(self) -> dict[str, list[Any]]:
        """Return the type and the shape of each column's rows, as JSON can hold it."""
        return {
            name: [str(column.dtype), list(column.row_shape)]
            for name, column in self._columns.items()
        }

    def add(self, name: str, tensor: Tensor) -> None:
        """Append a copy of rows, on the host; half precision as fp32, since numpy has no bf16.

        Args:
            name: of the column.
            tensor: (rows, ...), without a `mismatch` to those before it.

        Raises:
            RunError: a temporary file cannot be written.
        """
        # A copy, since a view keeps all of what it is a view of, and may be of a batch's memory.
        rows = at_least_fp32(tensor.detach()).to("cpu", copy=True).contiguous()
        array = rows.numpy()
        if name not in self._columns:
            self._columns[name] = _Column(rows.dtype, array.dtype, array.shape[1:])
        column = self._columns[name]
        assert not self.mismatch(name, rows)
        column.parts.append(array)
        column.rows += len(array)
        self._size += array.nbytes
        if not self.is_on_disk and self._size <= self.limit:
            return
        try:
            for full in [column] if self.is_on_disk else self._columns.values():
                full.write_out(self.folder)
        except OSError as error:
            raise self._not_written(error) from error
        self.is_on_disk = True

    def array(self, name: str) -> NDArray[Any]:
        """Return a column, (rows, ...): in memory, or mapped to its temporary file."""
        try:
            return self._columns[name].whole()
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> RunError:
        folder = self.folder or tempfile.gettempdir()
        return RunError(
            f"A temporary file of predictions in {folder} could not be written: "
            f"{error.strerror or error}. Set TMPDIR to a folder with more space."
        )


class _Column:
    """The rows of one name: arrays in memory, or a file."""

    def __init__(self, kind: torch.dtype, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self.kind = kind
        self.dtype = dtype
        self.row_shape = row_shape
        self.rows = 0
        self.parts: list[NDArray[Any]] = []
        self.file: IO[bytes] | None = None

    def write_out(self, folder: Path | None) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=folder, prefix="surestep-")  # noqa: SIM115
            weakref.finalize(self, self.file.close)
        for part in self.parts:
            if part.size:
                self.file.write(part.data)
        self.parts.clear()

    def whole(self) -> NDArray[Any]:
        shape = (self.rows, *self.row_shape)
        if self.file is None:
            return np.concatenate([np.empty((0, *self.row_shape), self.dtype), *self.parts])
        self.file.flush()
        if not np.prod(shape):
            return np.empty(shape, self.dtype)
        return np.memmap(self.file, self.dtype, mode="r+", shape=shape)
