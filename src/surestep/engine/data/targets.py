"""The training targets, read once before a run: what a loss is balanced by."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from surestep.base.errors import DataError
from surestep.engine.data.dataset import dataset_of, samples_of, unpack
from surestep.engine.data.source import InMemory, Loaded, Source
from surestep.engine.data.stream import is_stream
from surestep.engine.loss import Loss
from surestep.engine.losses.base import TableLoss
from surestep.engine.losses.several import its, naming
from surestep.engine.seed import LoadingRandomness
from surestep.engine.task import Task

BATCH = 256


def learn_targets(loss: Loss, task: Task, seed: int) -> str:
    """Let a loss learn from the training targets what it is to; return what it divides by.

    Raises:
        DataError: the targets cannot be read, or nothing can be learned from them.
    """
    if not loss.parts:
        return _learn(loss, task, seed, "")
    return ". ".join(f"{p.name}: {_learn(p.loss, task, seed, p.name)}" for p in loss.parts)


def _learn(loss: Loss, task: Task, seed: int, name: str) -> str:
    reason = (
        f"divided by {loss.divides_by}"
        if loss.divides
        else "a sum over the batch, set by you; evaluations report it per sample"
    )
    module = loss.module
    if not isinstance(module, TableLoss) or not module.needs_targets:
        return reason
    _let_learn(module, task, seed, name)
    samples = samples_of(task.train, "train")
    return f"{module.learned()}, read from the {samples} training samples; {reason}"


def with_targets_learned(task: Task, seed: int) -> Task:
    """Return the Task with a loss that has learned from its targets, for a part of its data.

    Raises:
        DataError: as `learn_targets`.
    """
    if not isinstance(task.loss, Mapping):
        return replace(task, loss=_that_learned(task.loss, task, seed, ""))
    losses = {name: _that_learned(each, task, seed, name) for name, each in task.loss.items()}
    return replace(task, loss=losses)


def _that_learned(loss: Any, task: Task, seed: int, name: str) -> Any:
    if not isinstance(loss, TableLoss) or not loss.needs_targets:
        return loss
    own = copy.deepcopy(loss)
    _let_learn(own, task, seed, name)
    return own


def _let_learn(loss: TableLoss, task: Task, seed: int, name: str) -> None:
    targets = read_targets(task, seed, repr(loss))
    with naming(name):
        loss.learn((its(each, name, "targets") for each in targets) if name else targets)


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
