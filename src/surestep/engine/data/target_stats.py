"""The training targets, read once before a run: what a loss is balanced by."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from surestep.base.errors import DataError
from surestep.engine.data.dataset import as_tensors, count_samples, dataset_of
from surestep.engine.data.sources import InMemory, MapStyleSource, Source
from surestep.engine.data.stream import is_stream
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import LossModule
from surestep.engine.losses.multi import error_prefix, get_named
from surestep.engine.rng import preserve_rng
from surestep.engine.task.task import Task

BATCH = 256


def fit_class_weights(loss: Loss, task: Task, seed: int) -> str:
    """Let a loss learn from the training targets what it is to; return what it divides by.

    Raises:
        DataError: the targets cannot be read, or nothing can be learned from them.
    """
    if not loss.components:
        return _learn(loss, task, seed, "")
    return ". ".join(f"{p.name}: {_learn(p.loss, task, seed, p.name)}" for p in loss.components)


def _learn(loss: Loss, task: Task, seed: int, name: str) -> str:
    reason = (
        f"divided by {loss.divides_by}"
        if loss.divides
        else "a sum over the batch, set by you; evaluations report it per sample"
    )
    module = loss.module
    if not isinstance(module, LossModule) or not module.needs_targets:
        return reason
    _let_learn(module, task, seed, name)
    samples = count_samples(task.train, "train")
    return f"{module.describe_fit()}, read from the {samples} training samples; {reason}"


def with_fitted_loss(task: Task, seed: int) -> Task:
    """Return the Task with a loss that has learned from its targets, for a part of its data.

    Raises:
        DataError: as `learn_targets`.
    """
    if not isinstance(task.loss, Mapping):
        return replace(task, loss=_that_learned(task.loss, task, seed, ""))
    losses = {name: _that_learned(each, task, seed, name) for name, each in task.loss.items()}
    return replace(task, loss=losses)


def _that_learned(loss: Any, task: Task, seed: int, name: str) -> Any:
    if not isinstance(loss, LossModule) or not loss.needs_targets:
        return loss
    own = copy.deepcopy(loss)
    _let_learn(own, task, seed, name)
    return own


def _let_learn(loss: LossModule, task: Task, seed: int, name: str) -> None:
    targets = read_targets(task, seed, repr(loss))
    with error_prefix(name):
        loss.fit((get_named(each, name, "targets") for each in targets) if name else targets)


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
    found, collate = as_tensors(dataset), task.collate_fn or getattr(data, "collate_fn", None)
    if found is not None:
        source: Source = InMemory(*found)
    else:
        source = MapStyleSource(dataset, seed=seed, collate=collate, options={"num_workers": 0})
    samples = len(source)
    ranges = [range(start, min(start + BATCH, samples)) for start in range(0, samples, BATCH)]
    with preserve_rng():
        for raw in source.read(0, None, ranges):
            yield task.split_batch(raw)[2]
