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
from tests.record.damage import in_time


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
def test_value_is_converted_to_plain_json(value, written):
    assert to_jsonable(value) == written
    assert json.loads(dumps(value)) == written


def test_json_file_round_trip(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1.5})
    assert read_json(tmp_path / "a.json") == {"a": 1.5}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_full_disk_preserves_the_old_file(tmp_path, monkeypatch):
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
def test_hint_matches_the_os_error(tmp_path, monkeypatch, number, hint):
    def fails(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RunError) as caught:
        write_json(tmp_path / "a.json", 1)
    assert str(caught.value).endswith(f"{os.strerror(number)}. {hint}")


def test_hint_names_the_option_to_change():
    error = OSError(errno.EROFS, "Read-only file system")
    assert os_error_hint(error, "file", " with --out") == (
        "Choose a file that can be written with --out."
    )


def test_missing_or_invalid_json_file_is_named(tmp_path):
    with pytest.raises(RunError, match="is not a complete run folder"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(RunError, match=r"a\.json cannot be read"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("")
    with pytest.raises(RunError, match=r"a\.json cannot be read: it is empty\. Put a copy"):
        read_json(tmp_path / "a.json")


def test_file_permissions_follow_the_umask(tmp_path):
    write_json(tmp_path / "a.json", 1)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize(
    "text", ["1e999", "-1e0400", "9" * 400 + ".0", "9" * 250 + "e99", "NaN", "Infinity"]
)
def test_nonfinite_json_number_is_rejected(text):
    with pytest.raises(ValueError, match="is not a number"):
        parse_json(f'{{"a": [{text}]}}'.encode())


def test_repeated_key_is_found_in_time_proportional_to_the_keys():
    keys = ",".join(f'"{number}":0' for number in range(200_000))
    with in_time(), pytest.raises(ValueError, match="it has 'last' twice"):
        parse_json(f'{{{keys},"last":0,"last":1}}'.encode())


@pytest.mark.parametrize("text", ["1e99", "1e-300", "1.5", "9" * 199 + "e99"])
def test_finite_json_number_is_parsed(text):
    assert parse_json(f"[{text}]".encode()) == [float(text)]
