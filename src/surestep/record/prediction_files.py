"""Write predictions to npz, safetensors, csv or jsonl: a complete file, or none."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from surestep.base.errors import DataError
from surestep.base.files import replace_file, temp_name
from surestep.engine.distributed.shards import TensorMeta
from surestep.record.io import check_output, explain_write_errors, to_jsonable
from surestep.record.safetensors_writer import stream_tensors

Arrays = Mapping[str, NDArray[Any]]
_AT_ONCE = 2**18  # numbers converted to text at once: some 20 MiB of Python objects
_OTHER = "file", " with --out"  # what else to choose


@contextmanager
def open_predictions(path: Path, *, overwrite: bool = False) -> Iterator[Callable[[Arrays], None]]:
    """Yield a function that writes predictions to a file; the file appears complete, or not at all.

    What is wrong with the path is reported before anything is computed.

    Args:
        path: ends in .npz, .safetensors, .csv or .jsonl.
        overwrite: replace an existing file.

    Raises:
        ConfigError: the ending is wrong, the folder is missing, or the file exists.
        RunError: the file cannot be written, or the disk is full.
    """
    writers = {".npz": _npz, ".safetensors": _safetensors, ".csv": _csv, ".jsonl": _jsonl}
    check_output(path, writers, overwrite=overwrite)
    temporary = temp_name(path, "tmp")
    with explain_write_errors(path, *_OTHER):
        temporary.touch()  # fails before anything is computed

    def write(arrays: Arrays) -> None:
        with explain_write_errors(path, *_OTHER), replace_file(path) as temporary:
            with temporary.open("wb") as file:
                writers[path.suffix](file, arrays)
            check_output(path, writers, overwrite=overwrite)

    try:
        yield write
    finally:
        temporary.unlink(missing_ok=True)


def _npz(file: IO[bytes], arrays: Arrays) -> None:
    """Write arrays by name; none has Python objects, so reading needs no pickle."""
    np.savez(file, **dict(arrays))  # type: ignore[arg-type]


def _safetensors(file: IO[bytes], arrays: Arrays) -> None:
    """Write arrays by name, each of which can be read in parts."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    described = {name: TensorMeta(tuple(t.shape), t.dtype) for name, t in tensors.items()}
    stream_tensors(file, described, tensors.__getitem__)


def _csv(file: IO[bytes], arrays: Arrays) -> None:
    """Write a row for each sample and a column for each number, such as "output_0_1"."""
    columns: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        for index in np.ndindex(array.shape[1:]):
            column = "_".join(map(str, (name, *index)))
            if column in columns:
                raise DataError(
                    f"Two columns would be called {column!r}. Write .npz or .jsonl, or give what "
                    "the model returns other names."
                )
            columns[column] = array[(slice(None), *index)]

    def write_rows(rows: Iterable[Iterable[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        file.write(text.getvalue().encode())

    write_rows([columns])
    for rows in _row_ranges(arrays):
        flat = [_listed(values[rows]) for values in columns.values()]
        write_rows(zip(*flat, strict=True))


def _jsonl(file: IO[bytes], arrays: Arrays) -> None:
    """Write an object for each sample; NaN and infinity become text."""
    for rows in _row_ranges(arrays):
        listed = [_listed(array[rows]) for array in arrays.values()]
        for row in zip(*listed, strict=True):
            sample = to_jsonable(dict(zip(arrays, row, strict=True)))
            file.write((json.dumps(sample, allow_nan=False) + "\n").encode())


def _row_ranges(arrays: Arrays) -> Iterator[slice]:
    """Return the ranges of rows that are converted to text at once, in order."""
    samples = len(arrays["index"])
    numbers = sum(math.prod(array.shape[1:]) for array in arrays.values())
    rows = max(1, _AT_ONCE // numbers)
    return (slice(first, first + rows) for first in range(0, samples, rows))


def _listed(array: NDArray[Any]) -> list[Any]:
    """Return nested lists; floats have the fewest digits that identify a float32."""
    if array.dtype == np.float32:
        array = array.astype(str).astype(np.float64)
    found: list[Any] = array.tolist()
    return found
