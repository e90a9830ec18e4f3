"""Times and speeds: of the steps, whatever happens between them."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from tests.twice.compare import plain_config, prepare

X, Y = torch.randn(30, 4), torch.randn(30, 1)
LONG = 1000.0  # seconds


class Clock:
    """A clock that stands still, except where the program moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


class Timed(nn.Module):
    """Takes 1 s in training and a long time in an evaluation."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.linear, self.clock = nn.Linear(4, 1), clock

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += 1 if self.training else LONG
        return self.linear(x)


def steps_of(run: surestep.Run) -> list[dict[str, Any]]:
    """Return the events of log points."""
    return [event for event in run.events() if event["event"] == "steps"]


def test_seconds_of_a_run_are_those_of_its_steps_without_evaluations(clock: Clock) -> None:
    task = surestep.Task(Timed(clock), nn.MSELoss(), train=(X, Y), val=(X[:7], Y[:7]))
    config = plain_config(
        epochs=3,
        batch_size=7,
        validation={"every": "3 steps"},
        logging={"every": "7 steps"},
        checkpoint={"every": "4 steps"},
    )
    run = surestep.Trainer(task, config, run="run").fit()
    assert [event["seconds"] for event in steps_of(run)] == [
        len(event["loss"]) for event in steps_of(run)
    ]
    assert run.status["seconds"] == 15
    assert run.status["items_per_s"] == 90 / 15


def test_seconds_of_an_own_loop_leave_out_its_evaluations_and_predictions(clock: Clock) -> None:
    task = surestep.Task(
        Timed(clock), nn.MSELoss(), train=(X, Y), val=(X[:7], Y[:7]), test=(X[:3], Y[:3])
    )
    session = prepare(task, plain_config(epochs=2, batch_size=7, logging={"every": "5 steps"}))
    for result in session.steps():
        if result.step in (2, 4):
            session.evaluate()
            session.save()
        if result.step == 3:  # a log point is not due
            session.predict("test")
            session.evaluate_checkpoint("test", "best")
    assert sum(event["seconds"] for event in steps_of(session.run)) == 10
    assert session.timed.as_json()["items_per_s"] == 6


def test_seconds_have_what_a_callback_does_in_a_step(clock: Clock) -> None:
    class Slow(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            clock.now += 10

    task = surestep.Task(Timed(clock), nn.MSELoss(), train=(X, Y), val=(X[:7], Y[:7]))
    config = plain_config(max_steps=4, batch_size=7, validation={"every": "1 steps"})
    run = surestep.Trainer(task, config, run="run", callbacks=[Slow()]).fit()
    assert run.status["seconds"] == 44


def test_seconds_of_own_batches_leave_out_evaluations(clock: Clock) -> None:
    task = surestep.Task(Timed(clock), nn.MSELoss(), train=(X, Y), val=(X[:7], Y[:7]))
    session = prepare(task, plain_config(max_steps=9, batch_size=7))
    for first in range(0, 30, 11):
        session.train_step([(X[first : first + 11], Y[first : first + 11])])
        session.evaluate()
    assert sum(event["seconds"] for event in steps_of(session.run)) == 3
