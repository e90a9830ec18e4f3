"""A run saves at exactly the steps that checkpoint.every specifies."""

from types import SimpleNamespace

import pytest

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
