"""Law 2 if your code freezes or unfreezes parameters while training."""

from contextlib import suppress

import pytest
import torch
from torch.nn.functional import cross_entropy

import surestep
from surestep.base.errors import Preempted
from tests import tiny
from tests.laws.support.tasks import assert_same

STEPS = 12
LATER = {"optim": {"lr": 0.05, "groups": ["0.* freeze='3 steps'"]}}


class Sets(surestep.Callback):
    """Sets requires_grad of the first layer after some steps, and pauses after one."""

    def __init__(self, changes, pause_at=None):
        self.changes, self.pause_at = changes, pause_at

    def on_step(self, state, result):
        if result.step in self.changes:
            state.model[0].requires_grad_(self.changes[result.step])
        return surestep.Request.PAUSE if result.step == self.pause_at else None


def fit(folder, changes, pause_at=None, **options):
    model = tiny.model()
    config = tiny.config(**{"max_steps": STEPS, "optim": {"lr": 0.05}, **options})
    callbacks = [Sets(changes, pause_at)]
    with suppress(Preempted):
        surestep.Trainer(tiny.task(model=model), config, run=folder, callbacks=callbacks).fit()
    return model.state_dict()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("pause_at", [4, 6, 9])
def test_frozen_parameters_stay_frozen_in_a_resumed_run(tmp_path, name, pause_at):
    options = {"optim": {"name": name, "lr": 0.05}}
    full = fit(tmp_path / "full", {4: False}, **options)
    fit(tmp_path / "half", {4: False}, pause_at, **options)
    assert_same(full, fit(tmp_path / "half", {}, **options))


def test_frozen_parameters_are_saved_if_only_trained_weights_are(tmp_path):
    options = {"checkpoint": {"weights": "trained"}}
    full = fit(tmp_path / "full", {4: False}, **options)
    fit(tmp_path / "half", {4: False}, 6, **options)
    assert_same(full, fit(tmp_path / "half", {}, **options))


@pytest.mark.parametrize("pause_at", [4, 6, 8, 9])
def test_parameters_that_are_unfrozen_again_are_trained_in_a_resumed_run(tmp_path, pause_at):
    changes = {4: False, 8: True}
    full = fit(tmp_path / "full", changes)
    fit(tmp_path / "half", changes, pause_at)
    assert_same(full, fit(tmp_path / "half", changes))


@pytest.mark.parametrize("changes", [{1: True}, {5: False}, {3: False}, {2: True, 5: False}])
@pytest.mark.parametrize("pause_at", [2, 3, 4, 6])
def test_freezing_by_code_and_by_options_resumes(tmp_path, changes, pause_at):
    """The first layer is frozen for three steps by the options."""
    full = fit(tmp_path / "full", changes, **LATER)
    fit(tmp_path / "half", changes, pause_at, **LATER)
    assert_same(full, fit(tmp_path / "half", changes, **LATER))


def test_resumed_run_equals_plain_pytorch(tmp_path):
    model, (x, y) = tiny.model(), tiny.data(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0, fused=True)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == 4:
            model[0].requires_grad_(False)
    options = {
        "optim": {"lr": 0.05, "weight_decay": 0.0},
        "schedule": {"name": "constant"},
        "max_grad_norm": "off",
        "data": {"shuffle": False},
    }
    for pause_at in (6, None):
        own = tiny.model()
        task = tiny.task(model=own, train=tiny.data(8))
        config = tiny.config(max_steps=STEPS, **options)
        callbacks = [Sets({4: False}, pause_at)]
        with suppress(Preempted):
            surestep.Trainer(task, config, run=tmp_path, callbacks=callbacks).fit()
    torch.testing.assert_close(own.state_dict(), model.state_dict(), rtol=1e-6, atol=1e-6)
