"""Streams to test with: the usual samples, in order, one by one."""

import random

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests import tiny

X, Y = tiny.data(44)


class Unsized(IterableDataset):
    """The samples, without a length and without shards for workers."""

    samples = len(Y)

    def __iter__(self):
        for index in range(self.samples):
            yield self.sample(index)

    def sample(self, index):
        return X[index], Y[index]


class Sized(Unsized):
    """The same samples, with a length."""

    def __len__(self):
        return self.samples


class Shared(Sized):
    """Worker i of n has every n-th sample, starting at i."""

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(worker, self.samples, workers):
            yield self.sample(index)


class Uneven(Shared):
    """The first worker has the first 30 samples, the second the rest."""

    def __iter__(self):
        info = get_worker_info()
        parts = [range(44)] if info is None else [range(30), range(30, 44)]
        yield from map(self.sample, parts[0 if info is None else info.id])


class Noisy(Shared):
    """Samples that draw from all three generators, as they are yielded."""

    def sample(self, index):
        noise = torch.randn(tiny.FEATURES) + np.random.rand() + random.random()
        return X[index] + 0.1 * noise.float(), Y[index]


def of_class(kind, **attributes):
    """Return a stream of a class with changed attributes."""
    made = kind()
    vars(made).update(attributes)
    return made
