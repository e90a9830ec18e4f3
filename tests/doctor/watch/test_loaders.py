"""The ends of passes over DataLoaders."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from surestep.doctor.rule import load_rules
from surestep.doctor.runtime.schedule_recorder import ScheduleRecorder
from surestep.doctor.watch.hooks import Monitor
from surestep.doctor.watcher import Watcher

BATCHES = 5


class Passes(Watcher):
    """Counts the batches of each pass that ended."""

    def __init__(self):
        self.batches, self.ended = 0, []

    def on_loader(self, run, loader):
        self.batches = 0

    def on_batch(self, run, loader, batch, seconds):
        self.batches += 1

    def after_loader(self, run, loader):
        self.ended.append(self.batches)


class Stream(IterableDataset):
    """Torch warns if its length was asked, and it gives more batches than that."""

    def __iter__(self):
        return iter(torch.ones(20, 4))

    def __len__(self):
        return 4


def watch(watcher, script):
    monitor = Monitor({"SS000": watcher})
    with monitor.installed():
        script()
    assert monitor.listeners.failures == {}
    return monitor.run


def make_loader(**options):
    return DataLoader(torch.ones(2 * BATCHES, 4), batch_size=2, **options)


def count_through(loader, batches):
    """Take so many batches as Lightning does, which never asks for one more."""
    iterator = iter(loader)
    return [next(iterator) for _ in range(batches)]


@pytest.mark.parametrize("workers", [0, 2])
def test_pass_that_gave_all_batches_has_ended(workers):
    watcher, loader = Passes(), make_loader(num_workers=workers)
    watch(watcher, lambda: [count_through(loader, BATCHES) for _ in range(3)])
    assert watcher.ended == [BATCHES] * 3


def test_pass_that_was_left_has_not_ended():
    watcher, loader = Passes(), make_loader()
    watch(watcher, lambda: [count_through(loader, BATCHES - 1) for _ in range(3)])
    assert watcher.ended == []


def test_each_end_is_reported_once():
    watcher, loader = Passes(), make_loader()
    watch(watcher, lambda: [list(loader) for _ in range(3)])
    assert watcher.ended == [BATCHES] * 3


@pytest.mark.filterwarnings("error")
def test_length_of_a_stream_is_not_asked():
    watcher, loader = Passes(), DataLoader(Stream(), batch_size=2)
    watch(watcher, lambda: [count_through(loader, 1), list(loader)])
    assert watcher.ended == [10]


class RandomLength(Sampler):
    """Its length draws random numbers."""

    def __iter__(self):
        return iter(torch.randperm(8).split(4))

    def __len__(self):
        return len(torch.randperm(8).split(4))


class Equal(DataLoader):
    """It has no hash."""

    def __eq__(self, other):
        return isinstance(other, Equal)


def test_length_of_a_sampler_of_the_script_is_not_asked():
    """Check all rules: one drew random numbers by it."""
    loader = DataLoader(torch.ones(8, 4), batch_sampler=RandomLength())
    monitor = Monitor({rule.code: rule.watcher() for rule in load_rules() if rule.watcher})
    torch.manual_seed(0)
    with monitor.installed():
        for _ in range(3):
            count_through(loader, 1)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    for _ in range(3):
        count_through(loader, 1)
    assert torch.equal(drawn, torch.rand(1))


def test_loader_without_a_hash_is_iterated():
    watcher, loader = Passes(), Equal(torch.ones(8, 4), batch_size=2)
    watch(watcher, lambda: [list(loader), count_through(loader, 4), count_through(loader, 1)])
    assert watcher.ended == [4, 4]


class WithoutLength(DataLoader):
    """It cannot say how many batches it gives."""

    def __len__(self):
        raise NotImplementedError


def test_loader_that_raises_for_its_length_is_iterated():
    watcher, loader = Passes(), WithoutLength(torch.ones(8, 4), batch_size=2)
    watch(watcher, lambda: [count_through(loader, 4), count_through(loader, 2)])
    assert watcher.ended == []


@pytest.mark.parametrize("is_open", [False, True])
def test_evaluation_inside_a_pass_does_not_split_it(is_open):
    """It ends within the pass, or after it: then the steps are of one pass only, too."""
    watcher, loader, other = ScheduleRecorder(), make_loader(), make_loader()

    def train():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for _ in range(3):
            opened = iter(other if is_open else ())
            for step, x in enumerate(loader):
                if step == 2 and not is_open:
                    list(other)
                model(x).sum().backward()
                optimizer.step()
            list(opened)

    watch(watcher, train)
    (seen,) = watcher.seen
    assert (seen.epochs, seen.batches) == (3, BATCHES)
