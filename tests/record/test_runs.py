"""Runs of a folder in Python: the same as `surestep runs`, and the best of them."""

import json
import os
from pathlib import Path

import pytest

import surestep
from surestep.base.errors import ConfigError, RunError
from surestep.record.lock import RunLock
from surestep.record.runs import RunList, RunSummary
from tests import tiny

X, Y = tiny.data()


def summary(name, best, metric="val/loss", mode="min"):
    return RunSummary(Path(name), "finished", metric=metric, mode=mode, best=best)


@pytest.fixture
def folder(tmp_path):
    for name, lr in (("good", 0.1), ("bad", 1e-9)):
        tiny.fit(tmp_path / name, {"val": (X, Y)}, optim={"lr": lr})
    tiny.fit(tmp_path / "more" / "not evaluated")
    return tmp_path


def test_best_run_can_be_used(folder):
    found = surestep.runs(str(folder))
    assert [each.name for each in found] == ["not evaluated", "bad", "good"]
    best = found.best()
    assert (best.name, best.metric) == ("good", "val/loss")
    assert best.best == best.run.best.metrics["val/loss"]
    assert best.run.load_model(tiny.model()).step == best.best_step


def test_runs_are_selected_and_ordered(folder):
    def names(**options):
        return [each.name for each in surestep.runs(folder, **options)]

    assert names(sort="best") == ["good", "bad", "not evaluated"]
    assert names(sort="name", state="finished") == ["bad", "good", "not evaluated"]
    assert names(state=["failed", "killed"]) == []
    assert names(name="*ood") == ["good"]
    assert names(name="*ood", state="failed") == names(name="*ood", metric="*/f1") == []
    assert names(metric="val/*", sort="name") == ["bad", "good"]
    assert names(recipe="digits") == []


def test_summary_is_of_what_was_written_last(folder):
    """The events of a killed run are newer than its status; its checkpoints have its last step."""
    path = folder / "good"
    (path / "status.json").write_text(json.dumps({"status": "running", "monitor": None}))
    (path / "events.jsonl").write_text("")
    for name, at in (("status.json", 1000), ("events.jsonl", 2000)):
        os.utime(path / name, (at, at))
    (found,) = surestep.runs(folder, name="good")
    assert (found.state, found.step, found.written) == ("killed", 6, 2000)
    os.utime(path / "status.json", (3000, 3000))
    lock = RunLock(path)
    (found,) = surestep.runs(folder, name="good")
    lock.release()
    assert (found.state, found.written) == ("running", 3000)


def test_size_is_that_of_the_files(folder):
    (found,) = surestep.runs(folder, name="good")
    files = [path for path in (folder / "good").rglob("*") if path.is_file()]
    assert found.bytes == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sort": "newest"}, "sort='newest' is not known. Use one of age, name, state, step"),
        ({"state": "finisht"}, "state='finisht' is not known. Use one of running, finished"),
        ({"state": ["failed", "stpped"]}, "state='stpped' is not known. Use one of running"),
    ],
)
def test_unknown_order_or_state_is_rejected(tmp_path, options, message):
    with pytest.raises(ConfigError) as raised:
        surestep.runs(tmp_path, **options)
    assert message in str(raised.value)


def test_missing_folder_and_address_are_rejected():
    with pytest.raises(RunError, match="There is no folder nowhere"):
        surestep.runs("nowhere")
    with pytest.raises(RunError, match="is an address"):
        surestep.runs("s3://bucket/runs")


@pytest.mark.parametrize(("mode", "best"), [("min", "low"), ("max", "high")])
def test_best_follows_the_mode(mode, best):
    listed = [summary(name, value, mode=mode) for name, value in (("low", -1.0), ("high", 2.0))]
    assert RunList([*listed, summary("unknown", None, mode=mode)]).best().name == best


def test_runs_with_different_metrics_have_no_best():
    of_loss, of_score = summary("a", 0.5), summary("b", 0.9, "val/score", "max")
    both = RunList([of_loss, summary("c", 0.7), of_score])
    with pytest.raises(RunError) as raised:
        both.best()
    assert "differs: val/loss (min) of 2 runs, val/score (max) of 1 run." in str(raised.value)
    assert "such as best('val/loss')" in str(raised.value)
    assert (both.best("val/loss"), both.best("val/score")) == (of_loss, of_score)
    with pytest.raises(RunError, match="None of 3 runs has a best value of val/other"):
        both.best("val/other")
    with pytest.raises(RunError, match=r"None of 0 runs has a best value\. Evaluate while"):
        RunList().best()


def test_unreadable_run_is_listed(folder):
    (folder / "bad" / "config.json").write_text(json.dumps({"format": 10**6}))
    (bad,) = surestep.runs(folder, state="unreadable")
    assert "config.json" in bad.problem
    assert bad.bytes > 0
