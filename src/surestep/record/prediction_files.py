"""Predictions on disk: npz, safetensors, csv or jsonl; whole, or not there at all."""

import csv
import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from surestep.base.errors import ConfigError, DataError, RunError, suggest_names
from surestep.base.paths import require_local_path
from surestep.record.io import os_error_hint, to_jsonable
from surestep.record.safetensors_writer import make_layout
from surestep.record.temp_files import temp_name

Arrays = Mapping[str, NDArray[Any]]
_NUMBERS = 2**18  # turned into text at once: some 20 MiB of Python objects
_OTHER = "file", " with --out"  # than the one that cannot be written


@contextmanager
def open_predictions(path: Path, *, overwrite: bool = False) -> Iterator[Callable[[Arrays], None]]:
    """Open a file for predictions; yield what writes them, after which the file is there.

    What can be wrong with the place is said before anything is computed. The bytes go to a
    temporary file beside it, which takes its name at the end.

    Args:
        path: ends in .npz, .safetensors, .csv or .jsonl.
        overwrite: replace a file that is there.

    Raises:
        ConfigError: another ending, no such folder, or a file is there already.
        RunError: it cannot be written, or the disk is full.
    """
    write = _writer_of(path)
    _check_place(path, overwrite=overwrite)
    temporary = temp_name(path, "tmp")
    try:
        file = temporary.open("wb")
    except OSError as error:
        raise _not_written(path, error, os_error_hint(error, _OTHER)) from error

    def whole(arrays: Arrays) -> None:
        try:
            write(file, arrays)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            _check_place(path, overwrite=overwrite)
            temporary.replace(path)
        except OSError as error:
            raise _not_written(path, error, os_error_hint(error, _OTHER)) from error

    try:
        yield whole
    finally:
        _let_go(file)
        temporary.unlink(missing_ok=True)


def _let_go(file: IO[bytes]) -> None:
    """Close a file; on a full disk that fails, and what it holds is thrown away anyway."""
    try:
        file.close()
    except OSError:
        return


def _not_written(path: Path, error: OSError, hint: str) -> RunError:
    return RunError(f"{path} could not be written: {error.strerror or error}. {hint}")


def _check_place(path: Path, *, overwrite: bool) -> None:
    require_local_path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder {path.parent} to write {path.name} into. Make it.")
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder. Say a file in it: --out {shlex.quote(str(path / 'test.npz'))}."
        )
    if path.exists() and not overwrite:
        raise ConfigError(
            f"{path} is there already. Say --overwrite to replace it, or choose another --out."
        )


def _writer_of(path: Path) -> Callable[[IO[bytes], Arrays], None]:
    writers = {".npz": _npz, ".safetensors": _safetensors, ".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in writers:
        raise ConfigError(
            f"--out {path}: the ending says the format, and {path.suffix or 'none'!r} is not one. "
            f"{suggest_names(path.suffix, writers)}"
        )
    return writers[path.suffix]


def _npz(file: IO[bytes], arrays: Arrays) -> None:
    """Write arrays by name; no array holds Python objects, so reading needs no pickle."""
    np.savez(file, **dict(arrays))  # type: ignore[arg-type]  # its own keyword: not among names


def _safetensors(file: IO[bytes], arrays: Arrays) -> None:
    """Write arrays by name, each of which can be read in parts."""
    for part in make_layout({name: torch.from_numpy(each) for name, each in arrays.items()}).parts:
        file.write(part)


def _csv(file: IO[bytes], arrays: Arrays) -> None:
    """Write a row for each sample and a column for each number: "output_0", "output_1", ..."""
    columns = list(columns_of(arrays))
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"Two columns would be called {twice[0]!r}. Write .npz or .jsonl, or give what the "
            "model returns other names."
        )
    _line(file, names)
    for rows in _row_ranges(arrays):
        flat = [_listed(each.values[rows]) for each in columns]
        for row in zip(*flat, strict=True):
            _line(file, row)


class _Lines:
    """What csv writes to: it hands each line back."""

    def write(self, text: str) -> str:
        return text


def _line(file: IO[bytes], cells: Any) -> None:
    text: Any = csv.writer(_Lines(), lineterminator="\n").writerow(cells)
    file.write(text.encode())


class Column(NamedTuple):
    """A number of each sample."""

    name: str
    values: NDArray[Any]


def columns_of(arrays: Arrays) -> Iterator[Column]:
    """Yield the columns of arrays, flattened: an array of (samples, 2, 3) has "name_0_0" first."""
    for name, array in arrays.items():
        for place in np.ndindex(array.shape[1:]):
            yield Column("_".join(map(str, (name, *place))), array[(slice(None), *place)])


def _jsonl(file: IO[bytes], arrays: Arrays) -> None:
    """Write an object for each sample; numbers that are not finite are their names in quotes."""
    for rows in _row_ranges(arrays):
        listed = [_listed(each[rows]) for each in arrays.values()]
        for row in zip(*listed, strict=True):
            sample = to_jsonable(dict(zip(arrays, row, strict=True)))
            file.write((json.dumps(sample, allow_nan=False) + "\n").encode())


def _row_ranges(arrays: Arrays) -> Iterator[slice]:
    """Yield the rows that are turned into text at once, in their order."""
    samples = len(arrays["index"])
    numbers = sum(math.prod(each.shape[1:]) for each in arrays.values())
    rows = max(1, _NUMBERS // numbers)
    return (slice(first, first + rows) for first in range(0, samples, rows))


def _listed(array: NDArray[Any]) -> list[Any]:
    """Return nested lists, with the fewest digits that give a float32 back."""
    if array.dtype == np.float32:
        array = array.astype(str).astype(np.float64)
    found: list[Any] = array.tolist()
    return found
