"""A run saves at exactly the steps that checkpoint.every specifies."""

from types import SimpleNamespace

import pytest
import torch

import surestep
from surestep.base.errors import Preempted
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


class AskOnce(surestep.Callback):
    """Requests a save and an evaluation after a step."""

    def __init__(self, step):
        self.step = step

    def on_step(self, state, result):
        return surestep.Request.SAVE if result.step == self.step else None

    def on_batch(self, state, batch):
        return surestep.Request.EVALUATE if state.progress.step == self.step - 1 else None


def test_requested_save_and_evaluation_are_made_once(tmp_path):
    task = tiny.task(val=tiny.data(5))
    config = tiny.config(epochs=2, checkpoint={"every": "1 epoch"}, validation={"every": "1 epoch"})
    run = surestep.Trainer(task, config, run=tmp_path / "r", callbacks=[AskOnce(2)]).fit()
    assert saves(run) == evaluations(run) == [2, 3, 6]


def evaluations(run):
    return [each["step"] for each in run.events() if each["event"] == "evaluation"]


class Pause(surestep.Callback):
    def on_step(self, state, result):
        return surestep.Request.PAUSE if result.step == 2 else None


def test_paused_run_evaluates_neither_when_it_pauses_nor_again_at_its_start(tmp_path):
    task, validation = tiny.task(val=tiny.data(5)), {"every": "1 epoch", "on_start": True}
    config = tiny.config(epochs=2, validation=validation)
    with pytest.raises(Preempted):
        surestep.Trainer(task, config, run=tmp_path / "r", callbacks=[Pause()]).fit()
    assert surestep.Run(tmp_path / "r").status["reason"] == "a callback asked to pause"
    run = surestep.Trainer(task, config, run=tmp_path / "r").fit()
    assert evaluations(run) == [0, 3, 6]


def test_cycle_that_a_skipped_step_would_have_ended_ends_in_a_later_one(tmp_path):
    x, y = tiny.data(48)
    x[8] = torch.nan  # in step 2 of 6
    said = {"max_steps": 6, "on_nonfinite": "skip", "data": {"shuffle": False}, "batch_size": 8}
    said["schedule"] = {"name": "cosine_restarts", "cycles": 3, "save_cycles": True}
    said["checkpoint"] = {"every": "100 steps", "async_save": False}
    assert saves(tiny.fit(tmp_path / "r", {"train": (x, y)}, **said)) == [3, 5, 6]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return zip(*tiny.data(), strict=True)


def test_epochs_of_a_stream_of_unknown_length_end_where_it_ends(tmp_path):
    said = {"max_steps": 8, "checkpoint": {"every": "2 epochs"}, "validation": {"every": "1 epoch"}}
    run = tiny.fit(tmp_path / "r", {"train": Stream(), "val": tiny.data(5)}, **said)
    assert evaluations(run) == [3, 6, 8]
    assert saves(run)[-2:] == [6, 8]
