"""What the page of a run has of its predictions."""

import json

import pytest

from surestep.mirror.outline import write_records
from surestep.mirror.store import Store
from surestep.record.predictions import NAME, write_predictions
from surestep.record.run import Run
from surestep.reports.predictions import describe_predictions
from surestep.reports.redact import redact
from surestep.reports.write import describe
from tests.record.test_predictions import EVALUATION
from tests.reports.folders import evaluation, log_point, write_run

WHY = "the loss is a custom function"
PLAN = [{"option": "report.samples", "value": 16, "reason": f"set in Python; not shown: {WHY}"}]


@pytest.fixture
def run(tmp_path):
    return Run(write_run(tmp_path / "run", [log_point(1, [1.0]), evaluation(1, 1.0)]))


def test_predictions_of_a_run_are_in_the_numbers_of_its_page(run):
    write_predictions(run.path, [EVALUATION])
    found = describe({str(run.path): run})["predictions"]
    assert found["why"] is None
    assert json.loads(json.dumps(found["evaluations"])) == [EVALUATION]


def test_run_that_was_not_to_collect_any_has_none(run):
    assert describe({str(run.path): run})["predictions"] is None
    assert describe_predictions(run, [{"option": "report.samples", "value": None}]) is None


def test_reason_of_the_plan_is_shown(run):
    assert describe_predictions(run, PLAN) == {"why": WHY, "evaluations": []}


def test_damaged_file_is_named(run):
    (run.path / NAME).write_text("{")
    found = describe_predictions(run, PLAN)
    assert found["evaluations"] == []
    assert found["why"].startswith(f"{run.path / NAME} cannot be read: ")


def test_mirror_has_the_predictions(run, tmp_path):
    write_predictions(run.path, [EVALUATION])
    write_records(Store(str(run.path)), tmp_path / "outline")
    assert (tmp_path / "outline" / NAME).read_bytes() == (run.path / NAME).read_bytes()


def test_redacted_pictures_stay():
    """Base64 may have what looks like a path."""
    sample = {"input": {"kind": "picture", "png": "iVBO+/home/ada/x"}}
    assert redact({"samples": [sample]}) == {"samples": [sample]}
