"""The prediction buffer holds the same rows in memory and in a temporary file."""

import numpy as np
import pytest
import torch

from surestep.base.errors import RunError
from surestep.engine.metrics import row_buffer
from surestep.engine.metrics.row_buffer import RowBuffer


def filled(limit, folder=None):
    buffer = RowBuffer(limit, folder)
    for first in range(0, 10, 4):
        rows = torch.arange(first, min(first + 4, 10))
        buffer.add("number", rows)
        buffer.add("half", torch.stack([rows, -rows], dim=1).to(torch.bfloat16))
        buffer.add("flag", rows > 4)
        buffer.add("empty", rows[:, None][:, :0])
    return buffer


@pytest.mark.parametrize("limit", [0, 1, 100, 10**6])
def test_rows_are_the_same_in_memory_and_on_disk(limit):
    buffer = filled(limit)
    assert buffer.is_on_disk == (limit < 10**6)
    assert isinstance(buffer.array("number"), np.memmap) == buffer.is_on_disk
    assert buffer.array("number").tolist() == list(range(10))
    assert buffer.array("half").dtype == np.float32
    assert buffer.array("half").tolist() == [[n, -n] for n in range(10)]
    assert buffer.array("flag").tolist() == [n > 4 for n in range(10)]
    assert buffer.array("empty").shape == (10, 0)


@pytest.mark.parametrize(
    ("name", "rows", "why"),
    [
        ("number", torch.arange(3), ""),
        ("new", torch.zeros(3, 2), ""),
        ("half", torch.zeros(3, 2), ""),  # it is kept as fp32
        ("number", torch.arange(2), "shape (2,) for 3 rows"),
        ("number", torch.tensor(2), "shape () for 3 rows"),
        ("half", torch.zeros(3, 4), "rows of shape (2,) in one batch and (4,) in another"),
        ("number", torch.arange(3.0), "torch.int64 in one batch and torch.float32 in another"),
        ("half", torch.zeros(3, 2).double(), "torch.float32 in one batch and torch.float64 in"),
    ],
)
def test_rows_that_do_not_fit_are_named(name, rows, why):
    found = filled(100).mismatch(name, rows, 3)
    assert why in found
    assert bool(found) == bool(why)


def test_temporary_file_is_unlinked(tmp_path):
    buffer = filled(0, tmp_path)
    assert buffer.is_on_disk
    assert list(tmp_path.iterdir()) == []


def test_rows_beyond_the_limit_do_not_stay_in_memory():
    buffer = filled(0)
    assert all(column.file._rolled for column in buffer.columns.values())


def test_added_row_is_a_copy():
    memory = torch.zeros(2)
    buffer = RowBuffer()
    buffer.add("x", memory)
    memory += 1
    assert buffer.array("x").tolist() == [0, 0]


def test_default_limit_is_the_documented_one(monkeypatch):
    assert row_buffer.LIMIT == 256 * 2**20
    monkeypatch.setattr(row_buffer, "LIMIT", 0)
    buffer = RowBuffer()
    buffer.add("x", torch.zeros(1))
    assert buffer.is_on_disk


def test_unwritable_temporary_folder_is_named_in_the_error(tmp_path):
    with pytest.raises(RunError, match=r"gone could not be written: No such file.*Set TMPDIR"):
        filled(0, tmp_path / "gone")
