import errno
import json
import os
import stat
from pathlib import Path

import pytest

from surestep.base.errors import RunError
from surestep.record.io import (
    dumps,
    os_error_hint,
    parse_json,
    read_json,
    to_jsonable,
    write_json,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ((1, (2.5, None)), [1, [2.5, None]]),
        ({1: Path("a/b")}, {"1": "a/b"}),
        ({"a": [True, "ü"]}, {"a": [True, "ü"]}),
    ],
)
def test_anything_has_a_plain_form(value, written):
    assert to_jsonable(value) == written
    assert json.loads(dumps(value)) == written


def test_what_is_written_can_be_read(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1.5})
    assert read_json(tmp_path / "a.json") == {"a": 1.5}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, 1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"a\.json could not be written: No space left .* Free some"):
        write_json(path, 2)
    assert read_json(path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "Free some space, or choose another folder with --run (run= in Python)."),
        (errno.EDQUOT, "Free some space, or choose another folder with --run (run= in Python)."),
        (errno.EROFS, "Choose a folder that can be written with --run (run= in Python)."),
        (errno.EACCES, "Choose a folder that can be written with --run (run= in Python)."),
        (errno.EIO, "Choose another folder with --run (run= in Python)."),
    ],
)
def test_the_hint_fits_what_the_disk_said(tmp_path, monkeypatch, number, hint):
    def fails(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RunError) as caught:
        write_json(tmp_path / "a.json", 1)
    assert str(caught.value).endswith(f"{os.strerror(number)}. {hint}")


def test_a_hint_names_what_else_to_choose():
    error = OSError(errno.EROFS, "Read-only file system")
    assert os_error_hint(error, ("file", " with --out")) == (
        "Choose a file that can be written with --out."
    )


def test_what_is_missing_or_no_json_is_named(tmp_path):
    with pytest.raises(RunError, match="is not a complete run folder"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(RunError, match=r"a\.json cannot be read"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("")
    with pytest.raises(RunError, match=r"a\.json cannot be read: it is empty\. Put a copy"):
        read_json(tmp_path / "a.json")


def test_others_may_read_a_file_as_the_umask_says(tmp_path):
    write_json(tmp_path / "a.json", 1)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize(
    "text", ["1e999", "-1e0400", "9" * 400 + ".0", "9" * 250 + "e99", "NaN", "Infinity"]
)
def test_a_number_that_is_not_finite_is_no_number(text):
    with pytest.raises(ValueError, match="is not a number"):
        parse_json(f'{{"a": [{text}]}}'.encode())


@pytest.mark.parametrize("text", ["1e99", "1e-300", "1.5", "9" * 199 + "e99"])
def test_a_number_that_is_finite_is_read(text):
    assert parse_json(f"[{text}]".encode()) == [float(text)]
