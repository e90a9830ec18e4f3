"""Batches of samples that a Dataset loads, in this process or in workers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from surestep.eject.templates.program import (
    BATCH_SIZE,
    EVALUATION_BATCH_SIZE,
    MICRO_BATCH_SIZE,
    SEED,
    STEPS,
    STEPS_PER_EPOCH,
    WORKERS,
    Parts,
    derive_seed,
    epoch_order,
)


def load(
    data: Any,
    indices: Tensor,
    split: str,
    epoch: int,
    position: int,
    collate_fn: Callable[[list[Any]], Any],  # ? collates
) -> Any:
    """Load samples, each with the seed of its position, whichever process loads it."""
    samples = []
    for offset, index in enumerate(indices.tolist()):
        torch.manual_seed(derive_seed("load", SEED, epoch, position + offset, split))
        samples.append(data[index])
    torch.manual_seed(derive_seed("load", SEED, epoch, position, split))  # ? collates
    return collate_fn(samples)  # ? collates
    return default_collate(samples)  # ? !collates


@dataclass
class Batches(Dataset[Any]):
    """The batches of the steps; a worker loads all of one."""

    data: Any
    sampled_by: Any  # ? sampled
    collate_fn: Callable[[list[Any]], Any]  # ? collates

    def __getitem__(self, step: int) -> Any:
        """Return the inputs and targets of a step."""  # ? !many
        """Return the inputs and targets of each micro-batch of a step."""  # ? many
        epoch, batch = divmod(step, STEPS_PER_EPOCH)
        position = batch * BATCH_SIZE
        indices = epoch_order(epoch, len(self.data))[position : position + BATCH_SIZE]
        return load(self.data, indices, "train", epoch, position, self.collate_fn)  # ? !many
        return [  # ? many
            load(self.data, own, "train", epoch, position + i * MICRO_BATCH_SIZE, self.collate_fn)
            for i, own in enumerate(indices.split(MICRO_BATCH_SIZE))
        ]


@dataclass
class EvaluationBatches(Dataset[Any]):
    """The batches of an evaluation, in the stored order."""

    data: Any
    collate_fn: Callable[[list[Any]], Any]  # ? collates

    def __getitem__(self, position: int) -> Any:
        """Return the inputs and targets from a position on."""
        indices = torch.arange(len(self.data))[position : position + EVALUATION_BATCH_SIZE]
        return load(self.data, indices, "val", 0, position, self.collate_fn)


def read_batches(parts: Parts, start: int) -> Iterator[Any]:
    """Return the batches of the steps from one on, which the workers load ahead."""
    batches = Batches(parts.train, parts.sampled_by, parts.collate_fn)
    steps = range(start, STEPS)
    return iter(DataLoader(batches, batch_size=None, sampler=steps, num_workers=WORKERS))


def read_evaluation(parts: Parts) -> Iterator[Any]:
    """Return the batches of an evaluation, which the workers load ahead."""
    batches = EvaluationBatches(parts.val, parts.collate_fn)
    positions = range(0, len(parts.val), EVALUATION_BATCH_SIZE)
    return iter(DataLoader(batches, batch_size=None, sampler=positions, num_workers=WORKERS))
