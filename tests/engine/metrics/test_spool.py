"""The prediction buffer holds the same rows in memory and in a temporary file."""

import numpy as np
import pytest
import torch

from surestep.base.errors import RunError
from surestep.engine.metrics import spool as module
from surestep.engine.metrics.spool import Spool


def filled(limit, folder=None):
    spool = Spool(limit, folder)
    for first in range(0, 10, 4):
        rows = torch.arange(first, min(first + 4, 10))
        spool.add("number", rows)
        spool.add("half", torch.stack([rows, -rows], dim=1).to(torch.bfloat16))
        spool.add("flag", rows > 4)
        spool.add("empty", rows[:, None][:, :0])
    return spool


@pytest.mark.parametrize("limit", [0, 1, 100, 10**6])
def test_rows_are_the_same_in_memory_and_on_disk(limit):
    spool = filled(limit)
    assert spool.is_on_disk == (limit < 10**6)
    assert isinstance(spool.array("number"), np.memmap) == spool.is_on_disk
    assert spool.array("number").tolist() == list(range(10))
    assert spool.array("half").dtype == np.float32
    assert spool.array("half").tolist() == [[n, -n] for n in range(10)]
    assert spool.array("flag").tolist() == [n > 4 for n in range(10)]
    assert spool.array("empty").shape == (10, 0)


def test_temporary_file_is_unlinked(tmp_path):
    spool = filled(0, tmp_path)
    assert spool.is_on_disk
    assert list(tmp_path.iterdir()) == []


def test_rows_beyond_the_limit_do_not_stay_in_memory():
    spool = filled(0)
    assert not any(column.parts for column in spool._columns.values())


def test_added_row_is_a_copy():
    memory = torch.zeros(2)
    spool = Spool()
    spool.add("x", memory)
    memory += 1
    assert spool.array("x").tolist() == [0, 0]


def test_default_limit_is_the_documented_one(monkeypatch):
    assert module.LIMIT == 256 * 2**20
    monkeypatch.setattr(module, "LIMIT", 0)
    spool = Spool()
    spool.add("x", torch.zeros(1))
    assert spool.is_on_disk


def test_unwritable_temporary_folder_is_named_in_the_error(tmp_path):
    with pytest.raises(RunError, match=r"gone could not be written: No such file.*Set TMPDIR"):
        filled(0, tmp_path / "gone")
