"""The training targets, read once before a run, for a loss that is balanced by them."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from surestep.base.errors import DataError
from surestep.engine.data.dataset import count_samples, dataset_of, find_collate
from surestep.engine.data.sources import InMemory, MapStyleSource
from surestep.engine.data.stream import is_stream
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import LossModule
from surestep.engine.losses.multi import error_prefix, get_named
from surestep.engine.rng import preserve_rng
from surestep.engine.task.task import Task

BATCH = 256


def fit_class_weights(loss: Loss, task: Task, seed: int, name: str = "") -> str:
    """Fit a loss to the training targets if it needs that; return what it divides by."""
    if loss.components:
        reasons = (
            f"{part.name}: {fit_class_weights(part.loss, task, seed, part.name)}"
            for part in loss.components
        )
        return ". ".join(reasons)
    reason = "a sum over the batch, set by you; evaluations report it per sample"
    if loss.divides:
        reason = f"divided by {loss.divides_by}"
    module = loss.module
    if not isinstance(module, LossModule) or not module.needs_targets:
        return reason
    fitted = _fit(module, task, seed, name)
    samples = count_samples(task.train, "train")
    return f"{fitted}, read from the {samples} training samples; {reason}"


def with_fitted_loss(task: Task, seed: int) -> Task:
    """Return the Task with a loss fitted to all of its targets, to use it on a part of its data."""

    def fitted(loss: Any, name: str) -> Any:
        if not isinstance(loss, LossModule) or not loss.needs_targets:
            return loss
        own = copy.deepcopy(loss)
        _fit(own, task, seed, name)
        return own

    if not isinstance(task.loss, Mapping):
        return replace(task, loss=fitted(task.loss, ""))
    return replace(task, loss={name: fitted(loss, name) for name, loss in task.loss.items()})


def _fit(loss: LossModule, task: Task, seed: int, name: str) -> str:
    targets = read_targets(task, seed, repr(loss))
    with error_prefix(name):
        return loss.fit(
            (get_named(batch, name, "targets") for batch in targets) if name else targets
        )


def read_targets(task: Task, seed: int, purpose: str) -> Iterator[Any]:
    """Yield the targets of the training data, each sample once, batch by batch."""
    data = task.train
    if is_stream(data):
        raise DataError(
            f"{purpose} reads the training data once before the run, and a stream is not read "
            "twice. Set a number for each class in place of 'balanced'."
        )
    source, collate = dataset_of(data, "train"), find_collate(data, task)
    if collate is not None or not isinstance(source, InMemory):
        source = MapStyleSource(source, seed=seed, collate=collate, options={"num_workers": 0})
    samples = len(source)
    ranges = [range(start, min(start + BATCH, samples)) for start in range(0, samples, BATCH)]
    with preserve_rng():
        for raw in source.read(0, None, ranges):
            yield task.split_batch(raw)[2]
