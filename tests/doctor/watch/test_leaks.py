"""Which samples count as trained on, and which as evaluated, by when the script takes batches."""

from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from surestep.doctor.rules import ss605_leakage_by_duplicates as rule
from surestep.doctor.watch.hooks import Monitor

ROWS = torch.randn(160, 4)
HELD_OUT = slice(96, 160)
BATCHES = 4  # of the validation data


def make_loader(rows, **options):
    return DataLoader(TensorDataset(rows), 16, **options)


def find_leaks(trained, epoch):
    """Return the samples that are said to be in both, after four epochs.

    Args:
        trained: the training data.
        epoch: takes a model, an optimizer, and the loaders of both parts.
    """
    watcher = rule.LeakageByDuplicatesWatcher()
    monitor = Monitor({"SS605": watcher})
    train, val = make_loader(trained, shuffle=True), make_loader(ROWS[HELD_OUT])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with monitor.installed():
        for _ in range(4):
            epoch(model, optimizer, train, val)
    assert monitor.listeners.failures == {}
    return sum(found.evidence["same"] for found in watcher.observe(monitor.run))


def step(model, optimizer, rows):
    optimizer.zero_grad()
    model(rows).pow(2).mean().backward()
    optimizer.step()


def train_and_evaluate(batches):
    """Return an epoch that evaluates so many batches, and asks for none more."""

    def epoch(model, optimizer, train, val):
        for (rows,) in train:
            step(model, optimizer, rows)
        with torch.no_grad():
            for (rows,) in islice(iter(val), batches):
                model(rows)

    return epoch


@pytest.mark.parametrize("batches", [2, BATCHES])
def test_evaluation_that_asks_for_no_batch_after_its_last_is_compared(batches):
    assert find_leaks(ROWS, train_and_evaluate(batches)) >= 16 * batches
    assert find_leaks(ROWS[:96], train_and_evaluate(batches)) == 0


def train_in_pairs(model, optimizer, train, val):
    """Train on batches of two loaders, of which one is given to the model before the other."""
    others = iter(val)
    for (rows,), _ in zip(train, range(BATCHES), strict=False):
        optimizer.zero_grad()
        output = model(rows)
        (other,) = next(others)
        (output.mean() - model(other).mean()).pow(2).backward()
        optimizer.step()


def test_batches_of_two_loaders_are_trained_on():
    assert find_leaks(ROWS, train_in_pairs) == 0


def train_on_batches_of_before(model, optimizer, train, val):
    """Train on each batch after the next one was taken, then evaluate."""
    rows = None
    for (following,) in train:
        if rows is not None:
            step(model, optimizer, rows)
        rows = following
    train_and_evaluate(BATCHES)(model, optimizer, [], val)


@pytest.mark.parametrize(("trained", "least"), [(ROWS, 32), (ROWS[:96], 0)])
def test_batches_may_be_taken_early(trained, least):
    found = find_leaks(trained, train_on_batches_of_before)
    assert found >= least
    assert bool(found) == bool(least)
