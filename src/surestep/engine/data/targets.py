"""The training targets, read once before a run: what a loss is balanced by."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from surestep.base.errors import DataError
from surestep.engine.data.dataset import dataset_of, samples_of, unpack
from surestep.engine.data.source import InMemory, Loaded, Source
from surestep.engine.data.stream import is_stream
from surestep.engine.loss import Loss
from surestep.engine.losses.base import TableLoss
from surestep.engine.seed import LoadingRandomness
from surestep.engine.task import Task

BATCH = 256


def learn_targets(loss: Loss, task: Task, seed: int) -> str:
    """Let a loss learn from the training targets what it is to; return what it divides by.

    Raises:
        DataError: the targets cannot be read, or nothing can be learned from them.
    """
    reason = f"divided by {loss.divides_by}" if loss.divides else "a sum, said by you"
    module = loss.module
    if not isinstance(module, TableLoss) or not module.needs_targets:
        return reason
    module.learn(read_targets(task, seed, loss.called))
    samples = samples_of(task.train, "train")
    return f"{module.learned()}, read from the {samples} training samples; {reason}"


def with_targets_learned(task: Task, seed: int) -> Task:
    """Return the Task with a loss that has learned from its targets, for a part of its data.

    Raises:
        DataError: as `learn_targets`.
    """
    if not isinstance(task.loss, TableLoss) or not task.loss.needs_targets:
        return task
    loss = copy.deepcopy(task.loss)
    loss.learn(read_targets(task, seed, repr(loss)))
    return replace(task, loss=loss)


def read_targets(task: Task, seed: int, wish: str) -> Iterator[Any]:
    """Yield the targets of the training data, each sample once, batch by batch.

    Args:
        task: with the data.
        seed: what the loading of a sample draws from.
        wish: what they are needed for, for the message.

    Raises:
        DataError: a stream, which is not read twice.
    """
    data = task.train
    if is_stream(data):
        raise DataError(
            f"{wish} reads the training data once before the run, and a stream is not read twice. "
            "Say a number for each class in place of 'balanced'."
        )
    dataset = dataset_of(data, "train")
    found, collate = unpack(dataset), task.collate_fn or getattr(data, "collate_fn", None)
    if found is not None:
        source: Source = InMemory(*found)
    else:
        source = Loaded(dataset, seed=seed, collate=collate, options={"num_workers": 0})
    samples = len(source)
    ranges = [range(start, min(start + BATCH, samples)) for start in range(0, samples, BATCH)]
    with LoadingRandomness():
        for raw in source.read(0, None, ranges):
            yield task.split(raw)[2]
