"""Reports of memory that ran out, in run folders that anyone may have written."""

import json

import pytest

from surestep.record.memory_report import memory_reports_of, write_memory_report
from tests.record.damage import DAMAGES, in_time, spoil

CONTENT = {"where": "in step 3", "text": "Memory ran out in step 3."}


def test_reports_are_listed_by_step_and_rank(tmp_path):
    names = ["step-10", "step-9", "evaluation-9", "step-9-rank-2"]
    for name in names:
        write_memory_report(tmp_path / f"out-of-memory-{name}.json", CONTENT)
    (tmp_path / "out-of-memory-other.json").write_text("{}")
    found = [(one.step, one.path.stem.removeprefix("out-of-memory-")) for one in reports(tmp_path)]
    assert found == [(9, "evaluation-9"), (9, "step-9-rank-2"), (9, "step-9"), (10, "step-10")]


def reports(folder):
    return list(memory_reports_of(folder))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_report_is_left_out(tmp_path, damage):
    path = tmp_path / "out-of-memory-step-3.json"
    write_memory_report(path, CONTENT)
    assert [one.text for one in reports(tmp_path)] == [CONTENT["text"]]
    spoil(path, damage)
    with in_time():
        assert reports(tmp_path) == []


@pytest.mark.parametrize("change", [{"format": 2}, {"text": 3}, {"where": None}])
def test_report_of_another_form_is_left_out(tmp_path, change):
    text = json.dumps({"format": 1, **CONTENT, **change})
    (tmp_path / "out-of-memory-step-3.json").write_text(text)
    assert reports(tmp_path) == []
