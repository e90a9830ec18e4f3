"""predictions.json is read only if it is what surestep writes."""

import json
import os

import pytest

from surestep.base.errors import RunError
from surestep.record.predictions import NAME, read_predictions, write_predictions

SAMPLE = {
    "index": 3,
    "loss": 2.5,
    "target": 1,
    "prediction": 0,
    "confidence": 0.75,
    "input": {"kind": "picture", "shape": [1, 8, 8], "size": [8, 8, 1], "png": "iVBORw0="},
}
SET = {
    "set": "val",
    "loss": "",
    "kind": "classes",
    "n_samples": 9,
    "classes": 2,
    "matrix": [[4, 1], [1, 3]],
    "pairs": [[0, 1, 1], [1, 0, 1]],
    "calibration": {"bins": [[0, None, None], [9, 0.5, 0.75]], "ece": 0.25},
    "samples": [SAMPLE],
    "worst": [0],
    "confident": [0],
}
EVALUATION = {
    "step": 10,
    "is_newest": True,
    "is_best": False,
    "measured": "weights",
    "sets": [SET],
    "left_out": [],
}


def test_written_predictions_are_read_back(tmp_path):
    write_predictions(tmp_path, [EVALUATION])
    found = read_predictions(tmp_path)
    assert json.loads(json.dumps(found)) == {"format": 1, "evaluations": [EVALUATION]}


def test_run_without_predictions_has_none(tmp_path):
    assert read_predictions(tmp_path) is None


def test_numbers_that_are_not_finite_are_read_back(tmp_path):
    sample = {**SAMPLE, "loss": float("inf")}
    write_predictions(tmp_path, [{**EVALUATION, "sets": [{**SET, "samples": [sample]}]}])
    (evaluation,) = read_predictions(tmp_path)["evaluations"]
    assert evaluation["sets"][0]["samples"][0]["loss"] == float("inf")


def changed(path, value):
    """Return the text of a file with another value at a path."""
    content = json.loads(json.dumps({"format": 1, "evaluations": [EVALUATION]}))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(content)


A_SET = ("evaluations", 0, "sets", 0)
A_SAMPLE = (*A_SET, "samples", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (changed(["format"], 2), "has format 2, and this surestep reads up to 1"),
        (changed([*A_SAMPLE, "input", "png"], '"><script>'), r"png is '\"><script>'"),
        (changed([*A_SAMPLE, "input", "kind"], "page"), "kind is 'page'"),
        (changed([*A_SAMPLE, "confidence"], 1.5), "confidence is 1.5"),
        (changed([*A_SAMPLE, "loss"], "<b>"), "loss is '<b>'"),
        (changed([*A_SET, "worst"], [1]), "worst has 1, which is not an index of its samples"),
        (changed([*A_SET, "matrix"], [[-1]]), "matrix"),
        (changed([*A_SET, "matrix"], [[1, 2]]), "a matrix has as many columns as rows"),
        (changed([*A_SET, "calibration", "bins", 1, 1], None), "a bin has shares only if"),
        (changed([*A_SET, "set"], "x" * 2000), "set is"),
        (changed(["evaluations", 0, "step"], True), "step is True"),
    ],
)
def test_file_of_another_form_is_rejected(tmp_path, text, message):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(RunError, match=message):
        read_predictions(tmp_path)


def test_file_that_is_a_link_is_rejected(tmp_path):
    (tmp_path / "other").write_text("{}")
    (tmp_path / NAME).symlink_to("other")
    with pytest.raises(RunError, match="it is a link"):
        read_predictions(tmp_path)


def test_full_disk_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(RunError, match=r"could not be written: No space left\. Free some space"):
        write_predictions(tmp_path, [EVALUATION])
    assert not list(tmp_path.iterdir())
