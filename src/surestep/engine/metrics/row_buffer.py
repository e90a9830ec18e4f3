"""Rows of tensors, batch after batch: in memory up to a limit, in temporary files beyond it."""

import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surestep.base.errors import RunError
from surestep.engine.losses.base import at_least_fp32

# What stays in memory, in bytes; a judgement: it holds a million rows of 64 fp32 numbers.
LIMIT = 256 * 2**20


@dataclass(eq=False)
class Column:
    """The rows of one name, in the memory of `file` or in a temporary file."""

    kind: torch.dtype
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    file: "tempfile.SpooledTemporaryFile[bytes]"
    rows: int = 0


class RowBuffer:
    """Columns to which rows are appended; each column is an array at the end.

    Up to `limit` bytes stay in memory. Beyond it every column is in a temporary file, which has no
    name in its folder: the system removes it when the process ends, whatever ends it.

    Args:
        limit: bytes of all columns together that stay in memory; None is `LIMIT`.
        folder: of the temporary files; None is that of `tempfile`, which TMPDIR sets.

    Attributes:
        columns: by name, in the order in which they appeared.
    """

    def __init__(self, limit: int | None = None, folder: Path | None = None) -> None:
        self.limit = LIMIT if limit is None else limit
        self.folder = tempfile.gettempdir() if folder is None else str(folder)
        self.columns: dict[str, Column] = {}
        self._size = 0

    @property
    def is_on_disk(self) -> bool:
        """Whether there is more than may stay in memory."""
        return self._size > self.limit

    def mismatch(self, name: str, tensor: Tensor, rows: int) -> str:
        """Return why a tensor cannot be appended as so many rows of a column; "" if it can."""
        shape = tuple(tensor.shape)
        if not shape or shape[0] != rows:
            return f"shape {shape} for {rows} rows"
        column, kind = self.columns.get(name), at_least_fp32(tensor[:0]).dtype
        if column is None or (column.row_shape, column.kind) == (shape[1:], kind):
            return ""
        if column.row_shape != shape[1:]:
            return f"rows of shape {column.row_shape} in one batch and {shape[1:]} in another"
        return f"numbers of {column.kind} in one batch and {kind} in another"

    def add(self, name: str, tensor: Tensor) -> None:
        """Append a copy of rows, on the host; half precision as fp32, since numpy has no bf16.

        Args:
            name: of the column.
            tensor: (rows, ...), without a `mismatch` to those before it.
        """
        rows = at_least_fp32(tensor.detach()).cpu().contiguous().resolve_conj().resolve_neg()
        array = rows.numpy()
        if name not in self.columns:
            file = tempfile.SpooledTemporaryFile(dir=self.folder, prefix="surestep-")  # noqa: SIM115
            self.columns[name] = Column(rows.dtype, array.dtype, array.shape[1:], file)
            weakref.finalize(self.columns[name], file.close)
        column = self.columns[name]
        column.rows += len(array)
        self._size += array.nbytes
        try:
            if array.size:
                column.file.write(array.data)
            if self.is_on_disk:
                for full in self.columns.values():
                    full.file.rollover()
        except OSError as error:
            raise self._not_written(error) from error

    def array(self, name: str) -> NDArray[Any]:
        """Return a column, (rows, ...): in memory, or mapped to its temporary file."""
        column = self.columns[name]
        shape = (column.rows, *column.row_shape)
        try:
            column.file.flush()
            if self.is_on_disk and np.prod(shape):
                return np.memmap(column.file, column.dtype, mode="r+", shape=shape)
            found = np.empty(shape, column.dtype)
            column.file.seek(0)
            column.file.readinto(found.reshape(-1).view(np.uint8).data)
            return found
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> RunError:
        return RunError(
            f"A temporary file of predictions in {self.folder} could not be written: "
            f"{error.strerror or error}. Set TMPDIR to a folder with more space."
        )
