"""The order of the training samples in an epoch, other than a shuffle."""

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
from torch import Tensor

from surestep.eject.templates.program import BATCH_SIZE, SEED, derive_seed

DRAWS = 100  # samples of an epoch
REPLACEMENT = True  # a sample may be drawn again
WINDOW = 50  # batches that are sorted by length together: more saves padding, fewer are more random


@lru_cache(maxsize=1)  # one order serves all steps of its epoch
def weighted_order(epoch: int, weights: Tensor) -> Tensor:
    """Draw the samples of an epoch by weight."""
    generator = torch.Generator().manual_seed(derive_seed("order", SEED, epoch))
    return torch.multinomial(weights, DRAWS, REPLACEMENT, generator=generator)


@lru_cache(maxsize=1)  # one order serves all steps of its epoch
def balanced_order(epoch: int, labels: Tensor) -> Tensor:
    """Draw the samples of an epoch, of each class as many in expectation."""
    weights = 1 / torch.bincount(labels).double()[labels]
    generator = torch.Generator().manual_seed(derive_seed("order", SEED, epoch))
    return torch.multinomial(weights, DRAWS, REPLACEMENT, generator=generator)


@lru_cache(maxsize=1)  # one order serves all steps of its epoch
def length_order(epoch: int, lengths: Tensor) -> Tensor:
    """Return every sample once, in batches of similar length, which need less padding."""
    generator = torch.Generator().manual_seed(derive_seed("order", SEED, epoch))
    shuffled = torch.randperm(len(lengths), generator=generator)
    full = len(lengths) - len(lengths) % BATCH_SIZE  # of the batches without a smaller last one
    windows = torch.arange(full) // (WINDOW * BATCH_SIZE)
    by_length = torch.argsort(lengths[shuffled[:full]], stable=True)
    by_window = by_length[torch.argsort(windows[by_length], stable=True)]
    batches = shuffled[by_window].view(-1, BATCH_SIZE)
    batches = batches[torch.randperm(len(batches), generator=generator)]
    rest = shuffled[full:]
    return torch.cat([batches.flatten(), rest[torch.argsort(lengths[rest])]])


@lru_cache(maxsize=1)  # one order serves all steps of its epoch
def custom_order(epoch: int, order: Callable[[int, int], Iterable[int]]) -> Tensor:
    """Return the order of the recipe, which may draw random numbers."""
    torch.manual_seed(derive_seed("sampler", SEED, epoch, 0))
    return torch.tensor([int(index) for index in order(SEED, epoch)])
