"""Schedules that are planned for more steps than a script takes."""

import functools

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader

from surestep.doctor.rules import ss305_schedule_never_stepped as never_stepped
from surestep.doctor.rules import ss307_schedule_ends_elsewhere as rule
from surestep.doctor.watch.hooks import Monitor
from surestep.doctor.watcher import Watcher

EPOCHS, BATCHES = 4, 5


def observe(make, *, per_batch=True, fail=False):
    """Train with a schedule, and return what the rule says."""
    watcher = rule.ScheduleEndsElsewhereWatcher()
    monitor = Monitor({"SS307": watcher})

    def train():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = make(optimizer)
        loader = DataLoader(torch.ones(8 * BATCHES, 4), batch_size=8)
        for _ in range(EPOCHS):
            for x in loader:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
                if per_batch:
                    schedule.step()
            if not per_batch:
                schedule.step()
        if fail:
            raise ValueError

    try:
        with monitor.installed():
            train()
    except ValueError:
        assert fail
    assert monitor.listeners.failures == {}
    return list(watcher.observe(monitor.run))


def decay(step, *, num_training_steps, num_cycles=0.5):
    return max(0.0, 1 - step / num_training_steps)


LONG = EPOCHS * BATCHES * 10


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: CosineAnnealingLR(optimizer, LONG),
        lambda optimizer: OneCycleLR(optimizer, 0.2, total_steps=LONG),
        lambda optimizer: LambdaLR(optimizer, functools.partial(decay, num_training_steps=LONG)),
    ],
    ids=["cosine", "one cycle", "transformers"],
)
def test_schedule_of_more_steps_is_reported(make):
    (found,) = observe(make)
    assert found.evidence["steps"] == EPOCHS * BATCHES
    assert found.evidence["planned"] == LONG


def test_script_that_fails_has_not_ended():
    assert observe(lambda optimizer: CosineAnnealingLR(optimizer, LONG), fail=True) == []


def test_batches_that_are_counted_by_epochs_are_left_to_another_rule():
    """SS303 reports them."""
    steps = EPOCHS * BATCHES
    assert observe(lambda o: CosineAnnealingLR(o, steps), per_batch=False) == []
    assert len(observe(lambda o: CosineAnnealingLR(o, LONG), per_batch=False)) == 1


def test_part_of_a_schedule_is_not_compared():
    """The steps of the first part are those of the milestone."""

    def make(optimizer):
        first = CosineAnnealingLR(optimizer, LONG)
        rest = CosineAnnealingLR(optimizer, EPOCHS * BATCHES - 8)
        return SequentialLR(optimizer, [first, rest], [8])

    assert observe(make) == []


def test_end_of_a_schedule_is_the_value_of_its_function():
    def decay_to_half(step, *, num_training_steps):
        return max(0.5, 1 - step / num_training_steps)

    made = functools.partial(decay_to_half, num_training_steps=EPOCHS * BATCHES * 3 // 2)
    assert observe(lambda optimizer: LambdaLR(optimizer, made)) == []


def test_rate_that_rises_again_has_no_end():
    of_cycles = functools.partial(decay, num_training_steps=LONG, num_cycles=3)
    assert observe(lambda optimizer: LambdaLR(optimizer, of_cycles)) == []


class WithoutHash(StepLR):
    """A schedule that no dictionary can have as a key."""

    __hash__ = None


def test_rules_about_schedules_are_disabled_if_one_cannot_be_recorded():
    """Otherwise, schedules whose steps were not recorded would be reported as never stepped."""
    monitor = Monitor(
        {
            "SS307": rule.ScheduleEndsElsewhereWatcher(),
            "SS305": never_stepped.ScheduleNeverSteppedWatcher(),
            "SS104": Watcher(),
        }
    )
    with monitor.installed():
        WithoutHash(torch.optim.SGD(torch.nn.Linear(4, 1).parameters()), 10)
    assert monitor.listeners.failures.keys() == {"SS305", "SS307"}
