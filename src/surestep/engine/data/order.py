"""The order of the training data: the Task's, or its DataLoader's, without excluded samples."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, Subset

from surestep.base.errors import ConfigError, DataError
from surestep.engine.data.bptt import BPTTDataset
from surestep.engine.data.columns import explain_columns
from surestep.engine.data.dataloader import sampler_of, sampler_order
from surestep.engine.data.dataset import count_samples, dataset_of, find_collate, is_mixture
from surestep.engine.data.samplers.basic import BasicOrder
from surestep.engine.data.samplers.length import by_length, measure_length
from surestep.engine.data.sources import InMemory
from surestep.engine.data.stream import is_stream
from surestep.engine.plan.batching import (
    BatchLayout,
    DatasetView,
    SampleOrder,
    check_order_fits,
)
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.rng import derive_seed, preserve_rng, seed_loading
from surestep.engine.task.task import Task

_LISTED = 8  # datasets that a message names


def dataset_view(task: Task) -> DatasetView:
    """Return what an order may read of the training data."""
    dataset = dataset_of(task.train, "train")
    count = len(dataset)

    def load_all() -> Iterator[Any]:
        with preserve_rng():
            seed_loading(derive_seed("check", 0))
            yield from (dataset[index] for index in range(count))

    def targets() -> Tensor | None:
        if isinstance(dataset, InMemory):
            batch = next(dataset.read(0, None, [range(count)]))
            return cast("Tensor | None", task.split_batch(batch)[2])
        found = getattr(dataset, "targets", None)  # as torchvision's datasets have
        return None if found is None else torch.as_tensor(found)

    sizes = {}
    if is_mixture(task.train):
        sizes = {name: count_samples(one, name) or 0 for name, one in task.train.items()}
    return DatasetView(count, load_all, targets, sizes)


def apply_order(task: Task, skips: ExcludedSamples | None = None) -> Task:
    """Return the task with the order of its training data, without the excluded samples.

    A plain order is made later, when data.shuffle is known.
    """
    order, train = task.sampler, task.train
    if is_stream(train):
        if order is not None:
            raise DataError(
                f"The sampler {order.name!r} needs indices, but the training data is a stream. "
                "Leave Task(sampler=...) out; to shuffle, set data.shuffle_buffer=1000."
            )
        return task
    if isinstance(train, BPTTDataset):
        if order is not None and order.name != "sequential":
            raise DataError(
                "The training data is in lanes, whose windows must be read in order, but the "
                f"sampler is {order.name!r}. Leave Task(sampler=...) out."
            )
        return replace(task, sampler=BasicOrder(shuffle=False).bind(dataset_view(task)))
    if isinstance(train, DataLoader):
        sampled = sampler_order(train)
        shuffles = isinstance(sampler_of(train), RandomSampler)
        if order is not None and (sampled is not None or shuffles):
            raise DataError(
                f"Task(sampler=...) is {order.name!r}, but the DataLoader has a "
                f"{type(sampler_of(train)).__name__}. Use one of them: give a DataLoader without "
                "shuffle and sampler, or leave Task(sampler=...) out."
            )
        order = sampled if order is None else order
    if order is None:
        if is_mixture(train):
            raise explain_columns(train, "train") or _missing_shares(train)
        return task
    order = order if skips is None else FilteredOrder(order, skips)
    return replace(task, sampler=order.bind(dataset_view(task)))


def group_by_length(task: Task) -> Task:
    """Return the task with batches of similar length, unless its data has an order or no indices.

    The rules reject the option then.
    """
    train = task.train
    if task.sampler is not None or task.batched or train is None:
        return task
    if isinstance(train, (DataLoader, BPTTDataset)) or is_stream(train) or is_mixture(train):
        return task
    return replace(task, sampler=by_length(measure_length))


def _missing_shares(datasets: Mapping[str, Any]) -> DataError:
    shares = [f"{name!r}: {1 / len(datasets):.2g}" for name in datasets]
    more = ", ..." if len(shares) > _LISTED else ""
    return DataError(
        f"train is a dict of {len(shares)} datasets, and their shares are not set. Set "
        f"Task(sampler=surestep.samplers.mixture({{{', '.join(shares[:_LISTED])}{more}}})), or "
        "give a ConcatDataset to read each sample once."
    )


def excluded_samples(task: Task, indices: Iterable[int], source: str) -> ExcludedSamples:
    """Return which samples of the task's training data are excluded."""
    count = count_samples(task.train, "train")
    assert count is not None, "a stream has no indices"
    samples = tuple(sorted(set(indices)))
    of = f" of {source}" if source else ""
    if samples and samples[-1] >= count:
        beyond = sum(index >= count for index in samples)
        raise ConfigError(
            f"exclude_samples{of} names sample {samples[-1]}, and the {count} training samples "
            f"have the indices 0 to {count - 1}: {beyond} of {len(samples)} do not exist. Was it "
            "written for different data?"
        )
    if len(samples) == count:
        raise ConfigError(
            f"exclude_samples{of} leaves out all {count} training samples. Name fewer of them."
        )
    if isinstance(task.train, BPTTDataset):
        raise ConfigError(
            "exclude_samples is set, and the training data is in lanes, whose windows follow each "
            "other: none can be left out. Split the sequence before BPTTDataset(...)."
        )
    if samples:
        check_order_fits(
            count,
            "exclude_samples leaves samples out of that order. Leave them out in the dataset "
            "instead: its __getitem__ returns another sample for these indices.",
        )
    return ExcludedSamples(samples, count, source)


@dataclass(frozen=True, eq=False)
class FilteredOrder:
    """An order without some samples; the positions of the others close up."""

    order: SampleOrder
    skips: ExcludedSamples
    length: int = 0

    @property
    def name(self) -> str:
        """Return the name of the full order."""
        return self.order.name

    def bind(self, samples: DatasetView) -> "FilteredOrder":
        """Return the order over this data."""
        found = replace(self, order=self.order.bind(samples))
        first, second = (found._full_epoch(0, epoch, 1).sort().values for epoch in (0, 1))
        if len(first.unique()) < len(first) or not torch.equal(first, second):
            raise ConfigError(
                f"exclude_samples is set, and the order {self.name!r} draws its samples again each "
                "epoch, so the lengths of the epochs would differ. Give those samples the weight 0 "
                "in surestep.samplers.weighted(weights), or a torch.utils.data.Subset of the data "
                "as train."
            )
        return replace(found, length=int(self.skips.kept()[first].sum()))

    def _full_epoch(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        order = self.order.indices(seed, epoch, batch_size)
        return torch.arange(self.skips.count) if order is None else order

    def __len__(self) -> int:
        return self.length

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Return the indices that are left of an epoch."""
        full = self._full_epoch(seed, epoch, batch_size)
        rest = full[self.skips.kept()[full]]
        if len(rest) != self.length:
            raise DataError(
                f"The order {self.name!r} without exclude_samples has {len(rest)} samples in epoch "
                f"{epoch + 1} and {self.length} in the first. Each epoch needs as many: leave "
                "those samples out of the order itself."
            )
        return rest

    def explain(self, layout: BatchLayout, seed: int) -> str:
        """Describe the full order, and how many samples are excluded."""
        return f"{self.order.explain(layout, seed)}; without {self.skips}"


def remaining_data(task: Task, skips: ExcludedSamples | None) -> Task:
    """Return the task with its remaining training data, in stored order."""
    if skips is None:
        return task
    rest = Subset(dataset_of(task.train, "train"), skips.kept().nonzero().flatten().tolist())
    return replace(task, train=rest, collate_fn=find_collate(task.train, task), sampler=None)
