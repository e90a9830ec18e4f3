"""Findings of the data in a run that is resumed: repeated if they are still true."""

import itertools
import json
import sys
from types import ModuleType

import pytest
import torch
from torch.utils.data import Dataset

import surestep
from surestep.trainer.review import findings
from surestep.trainer.review.data_findings import NAME
from tests import tiny

X, Y = tiny.data(64)
TEST = (torch.randn(20, 4), Y[:20].clone())
TEST[1][4] = 7  # a class without an output
LEAKING = {"train": (X, Y), "val": (X[:32], Y[:32]), "test": TEST}
OPTIONS = {"epochs": 3, "logging": {"progress": "plain"}}


class Rows(Dataset):
    """Rows whose values may change while a run is interrupted."""

    def __init__(self, x=X, y=Y):
        self.x, self.y, self.reads = x, y, 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        self.reads += 1
        return self.x[index], self.y[index]


@pytest.fixture
def opened(monkeypatch):
    """Count the checks of the data."""
    calls, read = [], findings.read_data
    monkeypatch.setattr(findings, "read_data", lambda *args: calls.append(args) or read(*args))
    return calls


def stop(folder, parts=None, *, steps=3, **options):
    """Train a few steps, and leave the run with a checkpoint, as one that was interrupted."""
    with tiny.prepare(folder, parts or LEAKING, **OPTIONS | options) as session:
        for result in session.steps():
            if result.step == steps:
                session.save()
                break


def resume(folder, parts=None, **options):
    """Train to the end; return the findings by rule."""
    allow = options.pop("allow", ())
    task, config = tiny.task(**(parts or LEAKING)), tiny.config(**OPTIONS | options)
    run = surestep.Trainer(task, config, run=folder, allow=allow).fit()
    assert run.status["status"] == "finished"
    return {found["rule"]: found for found in run.status["findings"]}


def test_resumed_run_has_the_findings_of_its_data_without_checking_again(tmp_path, opened):
    stop(tmp_path)
    before = json.loads((tmp_path / "status.json").read_text())["findings"]
    found = resume(tmp_path)
    assert {"SS505", "SS605"} <= set(found)
    assert [one for one in before if one["rule"] in ("SS505", "SS605")] == [
        found["SS505"],
        found["SS605"],
    ]
    assert len(opened) == 1


def test_killed_run_has_them_too(tmp_path, opened):
    stop(tmp_path)
    status = tmp_path / "status.json"
    status.write_text('{"status": "running"}')
    assert {"SS505", "SS605"} <= set(resume(tmp_path))
    assert len(opened) == 1


def test_process_shows_a_finding_once(tmp_path, capsys):
    with tiny.prepare(tmp_path, LEAKING, **OPTIONS) as session:
        assert capsys.readouterr().err.count("SS505 targets-out-of-range-or-type (error)") == 1
        next(iter(session.steps()))
        session.save()
    text = capsys.readouterr().err
    assert ("SS505" in text, text.count("SS605 ")) == (False, 1)
    resume(tmp_path)
    text = capsys.readouterr().err
    assert (text.count("SS505 "), text.count("SS605 ")) == (1, 1)
    events = [event for event in session.run.events() if event["event"] == "finding"]
    assert [event["rule"] for event in events] == ["SS505"]


CHANGED = {
    "validation set in memory": ({"val": tiny.data(32, seed=1)}, {}, {"SS505"}),
    "number of its samples": ({"val": (X[:8], Y[:8])}, {}, {"SS505", "SS605"}),
    "validation set is that to train on": ({"val": (X, Y)}, {}, {"SS505", "SS605"}),
    "groups": ({"groups": {"train": [1] * 64, "val": [1] * 32}}, {}, {"SS505", "SS605"}),
    "training data": (
        {"train": (X + 1, Y)},
        {"allow": ("data",)},
        {"SS505"},
    ),
    "batch size": ({}, {"batch_size": 16, "allow": ("batch_size",)}, {"SS505", "SS605"}),
    "all samples": ({}, {"doctor": {"check_data": "all"}}, {"SS505", "SS605"}),
}


@pytest.mark.parametrize("change", CHANGED)
def test_data_is_checked_again_if_something_differs(tmp_path, opened, change):
    parts, options, expected = CHANGED[change]
    stop(tmp_path)
    found = resume(tmp_path, {**LEAKING, **parts}, **options)
    assert {rule for rule in found if rule in ("SS505", "SS605")} == expected
    assert len(opened) == 2


@pytest.mark.parametrize("part", ["train", "test"])
def test_sample_that_was_corrected_is_checked_again(tmp_path, opened, part):
    parts = {"train": (X, Y), "val": tiny.data(20, seed=1), part: Rows(*TEST)}
    stop(tmp_path, parts, steps=1, data={"shuffle": False}, batch_size=3)
    assert "SS505" not in resume(
        tmp_path,
        {**parts, part: Rows(TEST[0], Y[:20])},
        data={"shuffle": False},
        batch_size=3,
    )
    assert len(opened) == 2


def test_new_code_is_checked_again(tmp_path, opened, tmp_path_factory, monkeypatch):
    file = tmp_path_factory.mktemp("code") / "own_code.py"
    file.write_text("")
    own = ModuleType("own_code")
    own.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "own_code", own)
    stop(tmp_path)
    known = json.loads((tmp_path / NAME).read_text())
    module = next(iter(known["code"]))
    for code, checks in ({**known["code"], "another": "00"}, 1), ({module: "00"}, 2):
        (tmp_path / NAME).write_text(json.dumps({**known, "code": code}))
        stop(tmp_path, steps=4 + checks)
        assert len(opened) == checks


@pytest.mark.parametrize(
    ("before", "now", "checks"),
    [("off", "sample", [0, 1]), ("sample", "off", [1, 1]), ("all", "sample", [1, 1])],
)
def test_change_of_how_much_is_read(tmp_path, opened, before, now, checks):
    stop(tmp_path, doctor={"check_data": before})
    counts = [len([plan for *_, plan in opened if plan.doctor_check_data != "off"])]
    found = resume(tmp_path, doctor={"check_data": now})
    counts.append(len([plan for *_, plan in opened if plan.doctor_check_data != "off"]))
    assert counts == checks
    assert ("SS605" in found) == (now != "off")


def test_rule_that_is_ignored_is_not_repeated(tmp_path, opened):
    stop(tmp_path)
    stop(tmp_path, steps=4, doctor={"ignore": {"SS605": "to compare"}})
    status = json.loads((tmp_path / "status.json").read_text())
    assert "SS605" not in {found["rule"] for found in status["findings"]}
    assert "SS605" in resume(tmp_path)
    assert len(opened) == 1


def test_rule_that_is_no_longer_ignored_is_checked(tmp_path, opened):
    stop(tmp_path, doctor={"ignore": {"SS605": "to compare"}})
    assert "SS605" in resume(tmp_path)
    assert len(opened) == 2


@pytest.mark.parametrize("text", [None, "", "[1]", '{"setup": 1}', "NaN"])
def test_data_is_checked_again_without_a_valid_file(tmp_path, opened, text):
    stop(tmp_path)
    if text is None:
        (tmp_path / NAME).unlink()
    else:
        (tmp_path / NAME).write_text(text)
    assert {"SS505", "SS605"} <= set(resume(tmp_path))
    assert len(opened) == 2


def test_damaged_file_does_not_read_an_endless_stream_forever(tmp_path, opened):
    def count():
        for index in itertools.count():
            yield X[index % 64] + 1, Y[index % 64]

    parts, options = {"train": (X, Y), "test": count}, {"epochs": None, "max_steps": 9}
    stop(tmp_path, parts, **options)
    known = json.loads((tmp_path / NAME).read_text())
    known["sets"]["test"]["samples"] = [2**40]
    (tmp_path / NAME).write_text(json.dumps(known))
    stop(tmp_path, parts, steps=4, **options)
    assert len(opened) == 2


def test_severity_that_is_not_known_is_checked_again(tmp_path, opened):
    stop(tmp_path)
    known = json.loads((tmp_path / NAME).read_text())
    known["findings"][0]["severity"] = "fatal"
    (tmp_path / NAME).write_text(json.dumps(known))
    assert {"SS505", "SS605"} <= set(resume(tmp_path))
    assert len(opened) == 2


def test_run_that_starts_from_another_one_is_checked(tmp_path, opened):
    stop(tmp_path / "a")
    task, config = tiny.task(**LEAKING), tiny.config(**OPTIONS)
    from_ = f"{tmp_path / 'a'}@last"
    surestep.prepare(task, config, run=tmp_path / "b", from_=from_).close()
    status = json.loads((tmp_path / "b" / "status.json").read_text())
    assert {"SS505", "SS605"} <= {found["rule"] for found in status["findings"]}
    assert len(opened) == 2


def test_resumed_run_reads_few_samples_of_sets_that_are_not_trained_on(tmp_path):
    parts = {"train": (X, Y), "test": Rows(*TEST)}
    stop(tmp_path, parts)
    parts["test"].reads = 0
    tiny.prepare(tmp_path, parts, **OPTIONS).close()
    assert parts["test"].reads == 12  # five samples and the one of the finding, twice
