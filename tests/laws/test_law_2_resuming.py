"""Law 2: a run stopped within an epoch and resumed equals an uninterrupted run, bit for bit.

The model has dropout and BatchNorm, the data draws from three generators. The model of the second
process starts from different weights, so only the checkpoint can make it equal.
"""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import surestep
from surestep import Request
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.trainer.session import Session
from tests.laws.support.tasks import (
    Augmented,
    assert_moved,
    assert_same,
    rows,
    session_of,
    snapshot,
    train,
    with_batchnorm,
)

Folder = Callable[[], Path]
OPTIONS = {"max_steps": 14, "batch_size": 9, "micro_batch_size": 5, "schedule": {"name": "cosine"}}


def task_of(data, *, other_weights: bool = False) -> surestep.Task:
    model = with_batchnorm()
    if other_weights:
        torch.manual_seed(99)
        model.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)
    return surestep.Task(model, nn.CrossEntropyLoss(), data)


class End(NamedTuple):
    """What a run that nothing stops has at its end."""

    tensors: dict[str, Tensor]
    progress: Any
    counts: Any


def end_of(session: Session) -> End:
    return End(snapshot(session), session.state.progress, session.state.counts)


_ENDS: dict[tuple[Callable, str], End] = {}


def whole(folder: Folder, make_data: Callable = Augmented, **more: Any) -> End:
    """Return the end of an uninterrupted run, which several resumed runs are compared with."""
    key = make_data, repr(OPTIONS | more)
    if key not in _ENDS:
        _ENDS[key] = end_of(train(task_of(make_data()), folder(), **OPTIONS | more))
    return _ENDS[key]


def check_resume(
    folder: Folder,
    make_data: Callable = Augmented,
    then_data: Callable | None = None,
    *,
    stop_at: int = 9,
    then: dict[str, Any] | None = None,
    expected: End | None = None,
    **more: Any,
) -> Session:
    """Stop and save after some steps (44 samples: 5 steps an epoch), resume, and compare.

    The session of the resumed run is returned.

    Args:
        folder: returns a new folder for a run.
        make_data: makes the data.
        then_data: makes the data of the resumed run, if it differs.
        stop_at: the step.
        then: other options of the resumed run.
        expected: the end of the uninterrupted run; None trains it.
        more: options of all runs.
    """
    options = OPTIONS | more
    if expected is None:
        expected = end_of(train(task_of(make_data()), folder(), **options))
    run = folder()
    with session_of(task_of(make_data()), run, **options) as session:
        for result in session.steps():
            if result.step == stop_at:
                session.save()
                half = snapshot(session)
                break
    again = task_of((then_data or make_data)(), other_weights=True)
    with session_of(again, run, **options | (then or {})) as session:
        assert_same(half, snapshot(session))
        assert [result.step for result in session.steps()] == list(range(stop_at + 1, 15))
    end = end_of(session)
    assert_same(expected.tensors, end.tensors)
    assert_moved(half, end.tensors)
    assert expected.progress == end.progress
    assert expected.counts == end.counts
    return session


@pytest.mark.parametrize("stop_at", [1, 5, 9, 12])
@pytest.mark.parametrize("data", [Augmented, lambda: rows(44)], ids=["augmented", "in memory"])
def test_resumed_run_equals_an_uninterrupted_run(folder, data, stop_at):
    check_resume(folder, data, stop_at=stop_at, expected=whole(folder, data))


@pytest.mark.parametrize("stop_at", [4, 9, 12])
@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_average_of_a_resumed_run_equals_that_of_an_uninterrupted_run(folder, kind, stop_at):
    average = {"kind": kind, "start": "2 steps"}
    expected = whole(folder, average=average)
    check_resume(folder, stop_at=stop_at, expected=expected, average=average)


@cache
def loader(workers: int) -> Callable[[], DataLoader]:
    options = {"persistent_workers": True} if workers else {}
    return lambda: DataLoader(Augmented(), 9, shuffle=True, num_workers=workers, **options)


@pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 0), (2, 2)])
def test_resume_with_a_different_number_of_dataloader_workers(folder, first, second):
    expected = whole(folder, loader(0))
    check_resume(folder, loader(first), loader(second), expected=expected)


def test_resume_with_a_different_number_of_configured_workers(folder):
    check_resume(folder, then={"data": {"num_workers": 2}}, expected=whole(folder))


@pytest.mark.parametrize("moment", ["on_batch", "on_backward", "on_step"])
def test_checkpoint_requested_in_any_hook_can_be_resumed(folder, moment):
    class Asking(surestep.Callback):
        def ask(self, state, *_):
            return Request.SAVE if state.progress.step == 9 else None

    setattr(Asking, moment, Asking.ask)
    run = folder()
    train(task_of(Augmented()), run, steps=10, callbacks=[Asking()], **OPTIONS)
    resumed = train(task_of(Augmented(), other_weights=True), run, **OPTIONS)
    assert_same(whole(folder).tensors, snapshot(resumed))


class Counting(nn.Module):
    """Scales by its number of calls, which its state_dict does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("table", torch.ones(3), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
        return x * self.table * (1 + 0.1 * self.calls)


def check_nonpersistent_buffer(folder: Folder) -> None:
    """A non-persistent buffer that training updates is restored on resume."""
    make = lambda: surestep.Task(  # noqa: E731
        nn.Sequential(with_batchnorm(), Counting()), nn.CrossEntropyLoss(), rows(44)
    )
    whole, run = train(make(), folder(), **OPTIONS), folder()
    with session_of(make(), run, **OPTIONS) as first:
        for result in first.steps():
            if result.step == 7:
                opened = open_checkpoint(first.save())
                break
    assert opened.manifest.tensors["buffers"].keys() == {"1.calls"}
    resumed = train(make(), run, **OPTIONS)
    assert_same(snapshot(whole), snapshot(resumed))
    assert float(resumed.model[1].calls) == float(whole.model[1].calls) > 14


def test_nonpersistent_buffer_is_restored_on_resume(folder):
    check_nonpersistent_buffer(folder)


class Patience(surestep.Callback):
    """Stops after some steps with a loss above the mean so far, so it needs its state."""

    def __init__(self) -> None:
        self.mean, self.over, self.started_with = torch.zeros(()), 0, None

    def on_start(self, state):
        self.started_with = self.over

    def on_step(self, state, result):
        self.mean = 0.9 * self.mean + 0.1 * result.loss.detach()
        self.over += int(result.loss > self.mean)
        return Request.STOP if self.over >= 11 else None

    def state_dict(self):
        return {"mean": self.mean, "over": self.over}

    def load_state_dict(self, state):
        self.mean, self.over = state["mean"], state["over"]


def check_callback_state(folder: Folder) -> None:
    """A callback that stops the run by its state stops it at the same step."""
    whole, run = Patience(), folder()
    session = train(task_of(Augmented()), folder(), callbacks=[whole], **OPTIONS)
    assert session.loop.requests.stopping
    half, rest = Patience(), Patience()
    with session_of(task_of(Augmented()), run, callbacks=[half], **OPTIONS) as first:
        for result in first.steps():
            if result.step == 7:
                first.save()
                break
    resumed = train(task_of(Augmented(), other_weights=True), run, callbacks=[rest], **OPTIONS)
    assert rest.started_with == half.over  # loaded before on_start
    assert resumed.state.progress == session.state.progress
    assert torch.equal(rest.mean, whole.mean)


def test_state_of_a_callback_is_restored_on_resume(folder):
    check_callback_state(folder)


def test_added_and_removed_callbacks_are_reported(folder, capsys):
    class Counting(Patience):
        pass

    run, plain = folder(), {"progress": "plain"}
    for callbacks in ([Patience()], [Counting()]):
        with session_of(
            task_of(rows(44)), run, callbacks=callbacks, logging=plain, **OPTIONS
        ) as session:
            next(session.steps())
            session.save()
    output = capsys.readouterr().err
    assert "The checkpoint has a state of Patience, which this run does not have" in output
    assert "Counting has no state in the checkpoint, and starts with its own." in output


class OwnNoise(Augmented):
    """Also draws from its own generators, which advance from sample to sample."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.python = torch.Generator(), random.Random(0)
        self.numpy = np.random.default_rng(0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        noise = torch.randn(10, generator=self.generator)
        x += 0.1 * noise + 0.1 * self.python.random() + 0.1 * float(self.numpy.random())
        return x, y


class Hooked(Augmented):
    """Draws from a generator that `set_sample_seed` seeds."""

    state = 1

    def set_sample_seed(self, seed: int) -> None:
        self.state = seed % 2**31

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        self.state = self.state * 48271 % (2**31 - 1)
        return x + 0.1 * self.state / 2**31, y


@pytest.mark.parametrize("data", [OwnNoise, Hooked])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_with_its_own_generators(folder, data, workers):
    expected = whole(folder, data)
    check_resume(folder, data, then={"data": {"num_workers": workers}}, expected=expected)


class Counted(Augmented):
    """Counts how often each sample was loaded, over all processes."""

    def __init__(self, samples: int = 44) -> None:
        super().__init__(samples)
        self.loaded = torch.zeros(samples, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int):
        self.loaded[index] += 1
        return super().__getitem__(index)


def check_loads(folder: Folder, *, workers: int = 0) -> None:
    """Resume after 2 of 5 steps of an epoch: earlier samples are not loaded again."""
    run, data = folder(), Counted()
    with session_of(task_of(data), run, data={"num_workers": workers}, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 7:
                session.save()
                break
    data.loaded.zero_()
    with session_of(task_of(data), run, data={"num_workers": workers}, **OPTIONS) as session:
        # Opening the run loads the first batch and the samples of the data fingerprint.
        looked_at = torch.cat(
            [session.loop.loader.epoch_order(0)[:9], data.loaded.nonzero().flatten()]
        )
        order = session.loop.loader.epoch_order(1)
        before = data.loaded.sum()
        next(session.steps())
    done = order[:18][~torch.isin(order[:18], looked_at)]
    assert len(done) > 5
    assert not data.loaded[done].any()
    assert data.loaded[order[18:27]].all()
    if not workers:
        assert data.loaded.sum() == before + 9  # only the samples of step 8


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_loads_no_earlier_samples(folder, workers):
    check_loads(folder, workers=workers)
