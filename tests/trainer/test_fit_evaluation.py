"""validation.batch_size="fit": data that ran out of memory is measured again, and counted once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import OutOfMemoryError
from surestep.config.not_set import NOT_SET
from surestep.record.predictions import read_predictions
from surestep.trainer import fit_memory
from surestep.trainer.evaluator import evaluate_run, predict_run
from surestep.trainer.session import Session
from tests.laws.support.limited_memory import OUT_OF_MEMORY, Stream
from tests.laws.support.tasks import mlp, rows, session_of

OPTIONS: dict[str, Any] = {"max_steps": 2, "batch_size": 16}


class Counter:
    """A metric that has memory for a number of rows, and counts the samples."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.reset()

    def reset(self) -> None:
        self.samples = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.samples += len(outputs)
        if self.samples > 16 and len(outputs) > self.most:
            raise OUT_OF_MEMORY[0]

    def compute(self) -> torch.Tensor:
        return torch.tensor(float(self.samples))


class Limited(nn.Module):
    """Has memory for a number of rows in eval mode, after the start of a run."""

    is_started = False

    def __init__(self, most: int) -> None:
        super().__init__()
        self.inner, self.most = mlp(), most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_started and not self.training and len(x) > self.most:
            raise OUT_OF_MEMORY[1]
        return self.inner(x)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own cache of found sizes."""
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the memory after the first steps."""
    steps = Session.steps

    def start(session: Session) -> Any:
        monkeypatch.setattr(Limited, "is_started", True)
        return steps(session)

    monkeypatch.setattr(Session, "steps", start)


def task_of(most: int = 99, *, of_metric: int = 99, val: Any = None) -> surestep.Task:
    return surestep.Task(
        Limited(most),
        nn.CrossEntropyLoss(),
        rows(32),
        val=val or {"one": rows(40), "two": rows(24)},
        metrics={"count": Counter(of_metric)},
    )


def trained(folder: Path, task: surestep.Task, size: Any, **more: Any) -> Session:
    Limited.is_started = False
    options = OPTIONS | {"validation": {"batch_size": size}} | more
    with session_of(task, folder, **options) as session:
        list(session.steps())
        session.metrics = session.evaluate()
        session.save()
    return session


def sizes_of(run: surestep.Run) -> list[tuple[str, int, int]]:
    events = [event for event in run.events() if event["event"] == "micro_batch"]
    return [(event["split"], event["step"], event["size"]) for event in events]


@pytest.mark.parametrize("parts", [{"most": 4}, {"of_metric": 4}])
def test_evaluation_that_runs_out_measures_each_sample_once(tmp_path, parts):
    found = trained(tmp_path / "fit", task_of(**parts), "fit")
    expected = trained(tmp_path / "set", task_of(), 4)
    assert found.metrics == expected.metrics
    assert found.metrics["one/count"] == 40
    sizes = [(step, size) for split, step, size in sizes_of(found.run) if split == "one"]
    assert sizes == [(0, 16), (2, 8), (2, 4)]


def test_later_evaluations_start_in_the_size_that_was_found(tmp_path):
    Limited.is_started = False
    options = OPTIONS | {"validation": {"batch_size": "fit"}}
    with session_of(task_of(4), tmp_path / "run", **options) as session:
        list(session.steps())
        first = session.evaluate()
        found = sizes_of(session.run)
        assert session.evaluate() == first
        assert sizes_of(session.run) == found


def test_next_run_starts_limited_evaluations_in_the_size_that_was_found(tmp_path):
    options = {"micro_batch_size": "fit", "limit_val_batches": 2}
    first, second = (
        trained(tmp_path / name, task_of(4), NOT_SET, **options) for name in ("first", "second")
    )
    assert first.metrics == second.metrics
    assert first.metrics["one/count"] == 32  # two batches of 16, whatever fits
    starts = [event for event in first.run.events() if event.get("split") == "one"]
    assert starts[0]["why"] == first.plan.reason("validation.batch_size")
    assert starts[0]["why"].startswith("limit_val_batches counts batches")
    (start,) = [event for event in second.run.events() if event.get("split") == "one"]
    assert (start["size"], start["why"]) == (4, fit_memory._EARLIER)


@pytest.mark.slow("trains runs to compare them")
def test_resumed_run_evaluates_in_the_sizes_that_it_found(tmp_path):
    trained(tmp_path / "run", task_of(4), "fit", max_steps=2)
    again = trained(tmp_path / "run", task_of(), "fit", max_steps=4)
    whole = trained(tmp_path / "whole", task_of(), 4, max_steps=4)
    assert again.metrics == whole.metrics
    assert {split: size for split, _, size in sizes_of(again.run)} == {"one": 4, "two": 4}


@pytest.mark.slow("trains runs to compare them")
def test_evaluation_follows_the_micro_batch_size(tmp_path):
    task = task_of(4)
    with session_of(task, tmp_path / "run", micro_batch_size="fit", **OPTIONS) as session:
        list(session.steps())
        assert session.evaluate()["two/count"] == 24


@pytest.mark.slow("trains runs to compare them")
def test_stream_is_read_again(tmp_path):
    found = trained(tmp_path / "fit", task_of(4, val={"one": Stream()}), "fit")
    expected = trained(tmp_path / "set", task_of(val={"one": Stream()}), 4)
    assert found.metrics == expected.metrics
    assert found.metrics["one/count"] == 55


@pytest.mark.slow("trains runs to compare them")
def test_shown_predictions_count_each_sample_once(tmp_path):
    runs = {}
    for name, task, size in (("fit", task_of(4), "fit"), ("set", task_of(), 4)):
        options = {**OPTIONS, "validation": {"batch_size": size}, "report": {"samples": 3}}
        config = surestep.Config(logging={"progress": "quiet"}, **options)
        runs[name] = surestep.Trainer(task, config, run=tmp_path / name).fit()
    found, expected = (read_predictions(run.path) for run in runs.values())
    assert found == expected


def test_closed_run_is_evaluated_and_predicted_in_smaller_batches(tmp_path):
    run = trained(tmp_path / "run", task_of(), 4).run
    assert Limited.is_started
    config = surestep.Config(**OPTIONS, validation={"batch_size": "fit"})
    _, metrics = evaluate_run(run, task_of(4), config, split="val", which="last")
    assert metrics["one/count"] == 40
    found, expected = (
        predict_run(run, task, config, split="one", which="last")[1]["output"]
        for task in (task_of(4), task_of())
    )
    assert len(found) == 40
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_session_predicts_each_sample_once(tmp_path):
    with session_of(
        task_of(4), tmp_path / "run", **OPTIONS, validation={"batch_size": "fit"}
    ) as session:
        list(session.steps())
        found = session.predict("one")
    assert found["index"].tolist() == list(range(40))


def test_one_sample_that_does_not_fit_is_an_error(tmp_path):
    session = session_of(task_of(0), tmp_path / "run", **OPTIONS, validation={"batch_size": "fit"})
    with session:
        list(session.steps())
        with pytest.raises(OutOfMemoryError, match="in the evaluation after step 2"):
            session.evaluate()
    assert sizes_of(session.run)[-1] == ("one", 2, 1)


@pytest.mark.slow("trains runs to compare them")
def test_size_that_is_set_is_not_changed(tmp_path):
    with session_of(task_of(4), tmp_path / "run", **OPTIONS) as session:
        list(session.steps())
        with pytest.raises(OutOfMemoryError):
            session.evaluate()
    assert sizes_of(session.run) == []
