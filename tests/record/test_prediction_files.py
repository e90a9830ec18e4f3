import csv
import errno
import json
import os
import subprocess

import numpy as np
import pytest
from safetensors import safe_open

from surestep.base.errors import ConfigError, DataError, RunError
from surestep.record import prediction_files as predictions
from surestep.record.prediction_files import open_predictions
from tests.warm import warm_python

ARRAYS = {
    "index": np.arange(3),
    "output": np.array([[0.1, -2e-30], [np.nan, 3], [np.inf, 1 / 3]], dtype=np.float32),
    "flag": np.array([True, False, True]),
    "target": np.array([1.5, 0.1, 2.0]),
}


def written(path, arrays=ARRAYS, **options):
    with open_predictions(path, **options) as write:
        write(arrays)
    return path


def test_npz_returns_the_arrays_without_pickle(tmp_path):
    found = np.load(written(tmp_path / "a.npz"), allow_pickle=False)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_safetensors_predictions_can_be_read_in_slices(tmp_path):
    with safe_open(written(tmp_path / "a.safetensors"), framework="np") as file:
        assert sorted(file.keys()) == sorted(ARRAYS)
        for name, array in ARRAYS.items():
            part = file.get_slice(name)
            assert part.get_shape() == list(array.shape)
            np.testing.assert_array_equal(part[1:], array[1:])
            assert part[1:].dtype == array.dtype


def test_wide_rows_are_formatted_in_small_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "_AT_ONCE", 5)
    arrays = {"index": np.arange(7), "output": np.arange(14).reshape(7, 2)}
    assert len(list(predictions._row_ranges(arrays))) == 7
    lines = written(tmp_path / "a.csv", arrays).read_text().splitlines()
    assert lines[1:] == [f"{n},{2 * n},{2 * n + 1}" for n in range(7)]
    text = written(tmp_path / "a.jsonl", arrays).read_text().splitlines()
    assert [json.loads(line)["output"] for line in text] == arrays["output"].tolist()


def test_csv_has_a_row_per_sample_and_a_column_per_number(tmp_path):
    rows = list(csv.reader(written(tmp_path / "a.csv").read_text().splitlines()))
    assert rows[0] == ["index", "output_0", "output_1", "flag", "target"]
    assert rows[1:] == [
        ["0", "0.1", "-2e-30", "True", "1.5"],
        ["1", "nan", "3.0", "False", "0.1"],
        ["2", "inf", "0.33333334", "True", "2.0"],
    ]


def test_jsonl_has_an_object_per_sample(tmp_path):
    lines = [json.loads(line) for line in written(tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines[0] == {"index": 0, "output": [0.1, -2e-30], "flag": True, "target": 1.5}
    assert lines[1]["output"] == ["nan", 3.0]
    assert lines[2]["output"] == ["inf", 0.33333334]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_text_formats_preserve_every_bit_of_a_float32(tmp_path, ending):
    values = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    arrays = {"index": np.arange(3000), "output": values}
    text = written(tmp_path / f"a.{ending}", arrays).read_text().splitlines()
    if ending == "csv":
        found = [line.split(",")[1] for line in text[1:]]
    else:
        found = [json.loads(line)["output"] for line in text]
    assert (np.array(found, dtype=np.float32) == values).all()


def test_more_dimensions_are_flattened_in_csv_and_nested_in_jsonl(tmp_path):
    arrays = {"index": np.arange(2), "output": np.arange(8).reshape(2, 2, 2)}
    head = written(tmp_path / "a.csv", arrays).read_text().splitlines()
    assert head[0] == "index,output_0_0,output_0_1,output_1_0,output_1_1"
    assert head[2] == "1,4,5,6,7"
    line = written(tmp_path / "a.jsonl", arrays).read_text().splitlines()[1]
    assert json.loads(line)["output"] == [[4, 5], [6, 7]]


def test_two_columns_of_one_name_are_rejected(tmp_path):
    arrays = {"index": np.arange(1), "a": np.zeros((1, 2)), "a_1": np.zeros(1)}
    with pytest.raises(DataError, match=r"Two columns would be called 'a_1'\. Write \.npz"):
        written(tmp_path / "a.csv", arrays)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a.txt",
            r"a\.txt': the ending decides the format.*not one.*\.npz, \.safetensors, \.csv",
        ),
        ("a.json", r"Did you mean '\.jsonl'"),
        ("a", "'none' is not one"),
        ("no/a.csv", r"There is no folder .*no to write a\.csv into"),
        ("there.csv", r"there\.csv exists\. Set --overwrite"),
        ("folder.npz", r"folder\.npz is a folder\. Name a file in it"),
    ],
)
def test_wrong_path_is_rejected_before_predicting(tmp_path, name, message):
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ConfigError, match=message), open_predictions(tmp_path / name):
        pytest.fail("it was opened")
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_folder_without_write_permission_is_rejected_before_predicting(tmp_path, monkeypatch):
    def no(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", no)
    with pytest.raises(RunError, match=r"a\.csv could not be written: Permission denied\. Choose"):
        written(tmp_path / "a.csv")


def test_overwriting_is_one_atomic_rename(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mine")
    with open_predictions(path, overwrite=True) as write:
        assert path.read_text() == "mine"
        write(ARRAYS)
    assert path.read_text().startswith("index")
    assert os.listdir(tmp_path) == ["a.csv"]


def test_file_created_while_predicting_is_not_overwritten(tmp_path):
    with open_predictions(tmp_path / "a.csv") as write:
        (tmp_path / "a.csv").write_text("mine")
        with pytest.raises(ConfigError, match="exists"):
            write(ARRAYS)
    assert (tmp_path / "a.csv").read_text() == "mine"


def test_failed_prediction_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), open_predictions(tmp_path / "a.npz"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from surestep.record.prediction_files import open_predictions

os.fsync = lambda _: os.kill(os.getpid(), 9)
with open_predictions(Path(sys.argv[1])) as write:
    write({"index": np.arange(100_000)})
"""


@pytest.mark.parametrize("ending", ["npz", "safetensors", "csv", "jsonl"])
def test_killed_process_leaves_no_file_of_that_name(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    done = subprocess.run([warm_python(), "-c", KILLED, str(path)], check=False)
    assert done.returncode == -9
    assert not path.exists()
    assert [path.suffix for path in tmp_path.iterdir()] != [f".{ending}"]
    assert written(path).exists()


@pytest.mark.parametrize("ending", ["npz", "safetensors", "csv", "jsonl"])
def test_full_disk_is_reported_and_leaves_no_file(tmp_path, monkeypatch, ending):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"No space left on device\. Free some space, or choose"):
        written(tmp_path / f"a.{ending}")
    assert os.listdir(tmp_path) == []
