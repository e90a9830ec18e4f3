"""Streams that save their state, and count what they read, and checks of a resume by it."""

import random

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.laws.support.tasks import Augmented, session_of
from tests.laws.test_law_2_resuming import OPTIONS, check_resume, task_of, whole

READ = torch.zeros(
    44, dtype=torch.int64
).share_memory_()  # reads of each sample, over all processes


class Counted(IterableDataset):
    """Noisy samples in a new order each epoch, split over workers, with `state_dict`."""

    def __init__(self):
        self.data, self.at, self.epoch = Augmented(44), 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        order = list(range(44))
        random.Random(self.epoch).shuffle(order)
        mine = order[worker::workers]
        while self.at < len(mine):  # starts from scratch only in a new instance
            index = mine[self.at]
            self.at += 1
            READ[index] += 1
            yield self.data[index]

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class Uneven(Counted):
    """The first worker has 30 samples, the second 14; a single worker has all."""

    def __iter__(self):
        info = get_worker_info()
        part = [range(44), range(30), range(30, 44)][0 if info is None else 1 + info.id]
        while self.at < len(part):
            self.at += 1
            READ[part[self.at - 1]] += 1
            yield self.data[part[self.at - 1]]


class Iterated(IterableDataset):
    """Its iterators hold the state."""

    def __init__(self):
        self.data = Augmented(44)

    def __iter__(self):
        return Samples(self.data)


class Samples:
    def __init__(self, data):
        self.data, self.at = data, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 44:
            raise StopIteration
        self.at += 1
        READ[self.at - 1] += 1
        return self.data[self.at - 1]

    state_dict = Counted.state_dict
    epoch = 0

    def load_state_dict(self, state):
        self.at = state["at"]


class Remembering(Counted):
    """A state that JSON cannot represent."""

    def __init__(self):
        super().__init__()
        self.rng, self.seen = random.Random(3), torch.zeros(44, dtype=torch.bool)

    def __iter__(self):
        for sample, label in super().__iter__():
            self.seen[self.at - 1] = True
            yield sample + self.rng.random() + self.seen.sum(), label

    def state_dict(self):
        return super().state_dict() | {"rng": self.rng.getstate(), "seen": self.seen}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.rng.setstate(state["rng"])
        self.seen = state["seen"]


STREAMS = {
    "its own": Counted,
    "its iterator's": Iterated,
    "of what a function makes": lambda: lambda: Counted(),
    "with tuples and tensors": Remembering,
}


def check_own_state(folder, make=Counted, *, stop_at=9, then=None, **more):
    """Compare with one uninterrupted run of each stream; return the resumed session."""
    expected = whole(folder, make, **more)
    return check_resume(folder, make, stop_at=stop_at, then=then, expected=expected, **more)


def check_with_output(folder, capsys, make, **more):
    """Check, and return what is printed, and the plan of the resumed run."""
    session = check_own_state(folder, make, logging={"progress": "plain"}, **more)
    return capsys.readouterr().err, session.plan


def resume_output(folder, capsys, make, **more):
    run, options = folder(), {**OPTIONS, "logging": {"progress": "plain"}, **more}
    for _ in range(2):
        with session_of(task_of(make()), run, **options) as session:
            for result in session.steps():
                if result.step == 3:
                    session.save()
                    break
    return capsys.readouterr().err, session.plan
