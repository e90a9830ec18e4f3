import math
from functools import partial

import numpy as np
import pytest
import torch

from surestep.base.errors import CheckpointError
from tests import tiny
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint


class Counting(torch.optim.SGD):
    """Puts a count into each group with its first step, as some optimizers of others do."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1


class Keeping(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        self.keep()


class InState(Keeping):
    def keep(self):
        self.state["all"]["count"] = 1


class InOptions(Keeping):
    """Keeps in its options what JSON does not hold, as Prodigy and schedule-free optimizers do."""

    def keep(self):
        group = self.param_groups[0]
        group["sum"] = group.get("sum", torch.zeros(2)) + 0.1
        group["d"] = np.float32(group.get("d", 1)) * np.float32(1.1)
        group["best"] = min(group.get("best", math.inf), math.inf)
        group["history"] = [*group.get("history", []), np.arange(2.0)]


class InGenerator(Keeping):
    def keep(self):
        self.param_groups[0]["rng"] = np.random.default_rng()


def state(kind, steps):
    return tiny.state_of(make=lambda parameters: kind(parameters, lr=0.1), steps=steps)


def test_a_count_that_came_with_the_first_step_goes_on(tmp_path):
    path = save_checkpoint(tmp_path, state(Counting, steps=3))
    fresh = state(Counting, steps=0)
    load_checkpoint(path, fresh)
    assert fresh.optimizer.param_groups[0]["count"] == 3


def test_tensors_and_numpy_numbers_among_the_options_are_loaded(tmp_path):
    saved, fresh = state(InOptions, steps=3), state(InOptions, steps=0)
    load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    for each in (saved, fresh):
        each.optimizer.keep()
    now, expected = (each.optimizer.param_groups[0] for each in (fresh, saved))
    assert torch.equal(now["sum"], expected["sum"])
    assert (now["d"], type(now["d"])) == (expected["d"], np.float32)
    assert now["best"] == math.inf
    np.testing.assert_array_equal(now["history"], expected["history"])


def test_an_option_that_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"groups/0/rng' is a Generator, which has no form"):
        save_checkpoint(tmp_path, state(InGenerator, steps=1))


def test_state_of_no_parameter_is_refused_and_not_lost(tmp_path):
    with pytest.raises(CheckpointError, match=r"InState keeps .*'all', which belongs"):
        save_checkpoint(tmp_path, state(InState, steps=1))


def decaying(decay, steps=2):
    """Return a state whose optimizer has another weight decay, and changes another option."""
    make = partial(Moving, lr=0.1, weight_decay=decay, momentum=0.5)
    return tiny.state_of(make=make, steps=steps)


class Moving(Keeping):
    def keep(self):
        self.param_groups[0]["momentum"] /= 2


def test_an_option_that_is_built_otherwise_now_counts_and_one_that_was_moved_is_loaded(tmp_path):
    saved, fresh = decaying(0.25), decaying(0.75, steps=0)
    load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    (group,) = fresh.optimizer.param_groups
    assert group["weight_decay"] == 0.75
    assert group["momentum"] == saved.optimizer.param_groups[0]["momentum"] == 0.125
