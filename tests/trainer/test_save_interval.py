"""A run saves at exactly the steps that checkpoint.every specifies."""

from types import SimpleNamespace

import pytest
import torch

from surestep.engine.distributed import communicator as world
from tests import tiny

# 20 samples in batches of 4 and 4 epochs: 5 steps an epoch, 20 steps, 4 items a step.
SAID = {
    "3 steps": [3, 6, 9, 12, 15, 18, 20],
    "0.5 epochs": [3, 5, 8, 10, 13, 15, 18, 20],
    "2 epochs": [10, 20],
    "30 items": [8, 15, 20],
    "100 items": [20],
    "50 items": [13, 20],
}


def saves(run):
    return [each["step"] for each in run.events() if each["event"] == "checkpoint"]


@pytest.mark.parametrize(("every", "steps"), SAID.items(), ids=SAID)
def test_run_saves_at_exactly_the_steps_of_its_interval(tmp_path, every, steps):
    said = {"checkpoint": {"every": every, "async_save": False}, "batch_size": 4, "epochs": 4}
    assert saves(tiny.fit(tmp_path / "r", **said)) == steps


def test_run_saves_at_every_minute_of_elapsed_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(world, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def passes(*_):
        now[0] += 25

    model = tiny.model()
    model.register_forward_pre_hook(passes)
    said = {"checkpoint": {"every": "1 minute", "async_save": False}, "batch_size": 4, "epochs": 2}
    assert saves(tiny.fit(tmp_path / "r", {"model": model}, **said)) == [3, 6, 9, 10]


def test_resumed_run_saves_and_evaluates_at_the_multiples_of_its_items(tmp_path):
    saved = {"every": "30 items", "async_save": False, "keep_best": 0}
    said = {"checkpoint": saved, "validation": {"every": "50 items"}, "batch_size": 4, "epochs": 4}
    with tiny.prepare(tmp_path, {"val": tiny.data(5)}, **said) as session:
        for result in session.steps():
            if result.step == 9:
                session.save()
                break
    run = tiny.fit(tmp_path, {"val": tiny.data(5)}, **said)
    assert saves(run) == [9, *SAID["30 items"][1:]]
    evaluated = [each["step"] for each in run.events() if each["event"] == "evaluation"]
    assert evaluated == SAID["50 items"]


@pytest.fixture
def clock(monkeypatch):
    """A model whose forward takes as many seconds as the fixture is called with."""
    now = [0.0]
    monkeypatch.setattr(world, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def model_that_takes(seconds):
        def passes(*_):
            now[0] += seconds

        model = tiny.model()
        model.register_forward_pre_hook(passes)
        return model

    return model_that_takes


ONE_BATCH = {"batch_size": 20, "epochs": 9}  # an epoch is one step
DEFAULT = {"async_save": False}


@pytest.mark.parametrize(
    ("seconds", "options", "steps"),
    [
        (0.01, {}, [9]),
        (4.0, {}, [3, 6, 9]),
        (11.0, {}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (0.01, {"checkpoint": {"every": "1 epoch"}}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (0.01, {"checkpoint": {"keep_every": "3 epochs"}}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (0.01, {"on_spike": "rollback"}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_default_saves_at_the_ends_of_epochs_that_are_ten_seconds_apart(
    tmp_path, clock, seconds, options, steps
):
    options = {**ONE_BATCH, **options}
    options["checkpoint"] = DEFAULT | options.get("checkpoint", {})
    run = tiny.fit(tmp_path / "r", {"model": clock(seconds)}, **options)
    assert saves(run) == steps


def test_plan_lists_the_seconds_between_two_saves(tmp_path):
    default, every = tiny.plan(**ONE_BATCH).plan, {"checkpoint": {"every": "1 epoch"}}
    assert default.checkpoint_min_seconds == 10
    assert "checkpoint.every='1 epoch' saves at each end" in default.reason(
        "checkpoint.min_seconds"
    )
    assert "checkpoint.min_seconds" in str(default)
    assert tiny.plan(**ONE_BATCH, **every).plan.checkpoint_min_seconds is None
    assert "checkpoint.min_seconds" not in str(tiny.plan(**ONE_BATCH, **every).plan)


def test_weights_do_not_depend_on_the_seconds_between_two_saves(tmp_path, clock):
    parts = [{"model": tiny.model(dropout=0.3)}, {"model": tiny.model(dropout=0.3)}]
    for part, seconds in zip(parts, (0.0, 11.0), strict=True):
        part["model"].register_forward_pre_hook(
            next(iter(clock(seconds)._forward_pre_hooks.values()))
        )
    runs = [tiny.fit(tmp_path / str(i), part, **ONE_BATCH) for i, part in enumerate(parts)]
    assert len(saves(runs[0])) == 1
    assert len(saves(runs[1])) == 9
    assert torch.equal(*(tiny.weights(part["model"]) for part in parts))


def test_run_that_was_started_with_another_interval_resumes(tmp_path):
    tiny.fit(tmp_path, max_steps=3, checkpoint={"every": "1 epoch"})
    assert tiny.fit(tmp_path, max_steps=6).status["step"] == 6
