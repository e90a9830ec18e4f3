"""The order of the training data: the Task's, or its DataLoader's, over the data itself."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from surestep.base.errors import DataError
from surestep.engine.data.bptt import BPTTDataset
from surestep.engine.data.dataset import as_tensors, count_samples, dataset_of, is_mixture
from surestep.engine.data.exclude_samples import FilteredOrder
from surestep.engine.data.sampler import sampler_of, sampler_order
from surestep.engine.data.samplers.basic import sequential
from surestep.engine.data.sources import InMemory, TensorRows
from surestep.engine.data.stream import is_stream
from surestep.engine.plan.batching import DatasetView
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.rng import preserve_rng, seed_loading
from surestep.engine.task.task import Task


def dataset_view(task: Task) -> DatasetView:
    """Return what an order may ask of the training data.

    Raises:
        DataError: not map-style, or empty.
    """
    dataset = dataset_of(task.train, "train")
    found = as_tensors(dataset)
    memory = InMemory(*found) if found is not None else None

    def each() -> Iterator[Any]:
        rows = (
            dataset
            if memory is None or not isinstance(dataset, (tuple, dict))
            else TensorRows(memory)
        )
        with preserve_rng():
            seed_loading(0)
            yield from (rows[index] for index in range(count))

    def targets() -> Tensor | None:
        if memory is not None:
            whole = next(memory.read(0, None, [range(len(memory))]))
            return cast("Tensor | None", task.split_batch(whole)[2])
        kept = getattr(dataset, "targets", None)  # as torchvision's datasets have
        return None if kept is None else torch.as_tensor(kept)

    count = len(memory) if memory is not None else len(dataset)
    parts = {}
    if is_mixture(task.train):
        parts = {name: count_samples(each, name) or 0 for name, each in task.train.items()}
    return DatasetView(count, each, targets, parts)


def apply_order(task: Task, skips: ExcludedSamples | None = None) -> Task:
    """Return the task with its order over the training data: its own, or its DataLoader's.

    An order that is given leaves `skips` out; a plain one is made where data.shuffle is known.

    Raises:
        DataError: the order does not fit the data, or two are given, or none to several datasets.
    """
    if is_stream(task.train):
        if task.sampler is not None:
            raise DataError(
                f"The Task has the order {task.sampler.name!r}, which needs positions, and its "
                "training data is a stream. Leave the order out; data.shuffle_buffer=1000 mixes."
            )
        return task
    if isinstance(task.train, BPTTDataset):
        if task.sampler is not None and task.sampler.name != "sequential":
            raise DataError(
                f"The training data is in lanes, whose windows follow on each other, and the order "
                f"is {task.sampler.name!r}. Leave the order out."
            )
        return replace(task, sampler=sequential().bind(dataset_view(task)))
    order, loader = task.sampler, task.train if isinstance(task.train, DataLoader) else None
    if loader is not None:
        sampled = sampler_order(loader)
        shuffles = isinstance(sampler_of(loader), RandomSampler)
        if order is not None and (sampled is not None or shuffles):
            raise DataError(
                f"The Task has the order {order.name!r}, and its DataLoader a "
                f"{type(sampler_of(loader)).__name__}. Say it in one place: give a DataLoader "
                "without shuffle and sampler, or leave the order out."
            )
        order = sampled if order is None else order
    if order is None:
        if is_mixture(task.train):
            names = ", ".join(f"{name!r}: {1 / len(task.train):.2g}" for name in task.train)
            raise DataError(
                f"train is {len(task.train)} datasets, and nothing says how they are mixed. Say "
                f"Task(sampler=surestep.samplers.mixture({{{names}}})), or give a ConcatDataset "
                "to take "
                "each sample once."
            )
        return task
    whole = order if skips is None else FilteredOrder(order, skips)
    return replace(task, sampler=whole.bind(dataset_view(task)))
