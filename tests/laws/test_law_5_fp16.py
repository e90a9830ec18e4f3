"""Law 5 under fp16: an overflow halves the scale and changes nothing else.

A finite loss with gradients that are not finite is an overflow. The run fails only if the loss is
not finite or the scale falls below 1.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surestep.base.errors import NonFiniteError
from tests.laws.support.nonfinite_tasks import BATCH, bomb
from tests.laws.support.tasks import assert_moved, assert_same, session_of, snapshot
from tests.laws.test_law_5_skipping import before, files_of

Folder = Callable[[], Path]
OPTIONS: dict[str, Any] = {
    "epochs": 1,  # twelve steps
    "batch_size": BATCH,
    "precision": "fp16",
    "scaler": {"init_scale": 1024.0},
    "schedule": {"name": "cosine", "warmup": "3 steps"},
    "optim": {"lr": 0.05},
}


def check_overflow(folder: Folder, **options: Any) -> None:
    """Have two steps overflow; check the scale and all other state."""
    bad, rates = (3, 6), {}
    with session_of(bomb("gradient", bad), folder(), **OPTIONS | options) as session:
        held, scale = snapshot(session), 1024.0
        for result in session.steps():
            now, rates[result.step] = snapshot(session), result.lr
            if result.step in bad:
                assert_same(held, now)
                scale /= 2
            else:
                assert_moved(held, now)
            assert bool(result.took_step) == (result.step not in bad)
            assert session.state.scaler.get_scale() == scale
            held = now
    assert (rates[4], rates[7]) == (rates[3], rates[6])
    assert session.state.counts.overflow == 2
    assert session.state.counts.nonfinite == 0
    assert (session.state.progress.step, session.state.progress.steps_taken) == (12, 10)


@pytest.mark.parametrize("optim", [{"lr": 0.05}, {"name": "sgd", "lr": 0.05, "momentum": 0.9}])
def test_overflow_halves_the_scale_and_changes_nothing_else(folder, optim):
    check_overflow(folder, optim=optim)


def test_scale_follows_the_config(folder):
    """The scale grows after `growth_interval` good steps and shrinks by `backoff_factor`."""
    scaler = {
        "init_scale": 256.0,
        "growth_interval": 2,
        "growth_factor": 4.0,
        "backoff_factor": 0.25,
    }
    scales = []
    with session_of(bomb("gradient", [4]), folder(), **OPTIONS | {"scaler": scaler}) as session:
        for result in session.steps():
            scales.append(session.state.scaler.get_scale())
            if result.step == 6:
                break
    assert scales == [256, 1024, 1024, 256, 256, 1024]


@pytest.mark.parametrize("kind", ["both", "loss"])
def test_nonfinite_loss_is_not_an_overflow(folder, kind):
    expected = before(folder, bomb(kind, [5]), 4, **OPTIONS)
    with session_of(bomb(kind, [5]), folder(), **OPTIONS) as session:
        with pytest.raises(NonFiniteError, match="Step 5 "):
            list(session.steps())
        assert session.state.scaler.get_scale() == 1024
        assert session.state.counts.skipped == 0
        assert files_of(session.save()) == expected


def test_scale_below_one_ends_the_run(folder):
    options = OPTIONS | {"scaler": {"init_scale": 4.0}}
    with session_of(bomb("gradient", range(2, 13)), folder(), **options) as session:
        with pytest.raises(NonFiniteError, match="Step 4 "):
            list(session.steps())
        assert session.state.counts.overflow == 2
        assert session.state.scaler.get_scale() == 1


def test_checkpoint_holds_the_scale(folder):
    """A run resumed after an overflow continues with its scale, bit for bit."""
    run = folder()
    with session_of(bomb("gradient", [3]), folder(), **OPTIONS) as whole:
        list(whole.steps())
    with session_of(bomb("gradient", [3]), run, **OPTIONS) as first:
        for result in first.steps():
            if result.step == 5:
                first.save()
                break
    with session_of(bomb("gradient", [3]), run, **OPTIONS) as second:
        assert second.state.scaler.get_scale() == 512
        list(second.steps())
    assert_same(snapshot(whole), snapshot(second))
    assert whole.state.scaler.state_dict() == second.state.scaler.state_dict()
    assert second.state.counts.overflow == 1
