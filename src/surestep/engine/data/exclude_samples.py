"""Samples that are left out of a run, by their index in the training data."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from surestep.base.errors import ConfigError, DataError
from surestep.engine.data.bptt import BPTTDataset
from surestep.engine.data.dataset import count_samples, dataset_of
from surestep.engine.data.samplers.basic import BasicOrder
from surestep.engine.plan.batching import BatchLayout, DatasetView, SampleOrder
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.task.task import Task


def excluded_samples(task: Task, said: Iterable[int], source: str) -> ExcludedSamples:
    """Return which samples of the task's training data are left out; each must exist.

    Raises:
        ConfigError: an index that no sample has, or nothing is left, or the data is in lanes.
    """
    count = count_samples(task.train, "train")
    assert count is not None, "a stream has no indices"
    samples = tuple(sorted(set(said)))
    of = f" of {source}" if source else ""
    if samples and samples[-1] >= count:
        beyond = sum(each >= count for each in samples)
        raise ConfigError(
            f"exclude_samples{of} names sample {samples[-1]}, and the {count} training samples "
            "have "
            f"the indices 0 to {count - 1}: {beyond} of {len(samples)} do not exist. Was it "
            "written for other data?"
        )
    if len(samples) == count:
        raise ConfigError(
            f"exclude_samples{of} leaves out all {count} training samples. Name fewer of them."
        )
    _check_no_lanes(task)
    return ExcludedSamples(samples, count, source)


def _check_no_lanes(task: Task) -> None:
    if isinstance(task.train, BPTTDataset):
        raise ConfigError(
            "exclude_samples is said, and the training data is in lanes, whose windows follow on "
            "each "
            "other: none can be left out. Cut the sequence before Lanes(...)."
        )


@dataclass(frozen=True, eq=False)
class FilteredOrder:
    """An order without some samples; the others keep their places one after the other.

    Attributes:
        order: of all samples.
        skips: what is left out.
        length: positions of an epoch that are left.
    """

    order: SampleOrder
    skips: ExcludedSamples
    length: int = 0

    @property
    def name(self) -> str:
        """Return the name of the whole order."""
        return self.order.name

    def bind(self, samples: DatasetView) -> "FilteredOrder":
        """Return the order over this data, whose epochs must have the same samples, each once.

        Raises:
            ConfigError: they have not, so that each epoch would be left with another length.
        """
        found = replace(self, order=self.order.bind(samples))
        first, second = (found._whole(epoch).sort().values for epoch in (0, 1))
        if len(first.unique()) < len(first) or not torch.equal(first, second):
            raise ConfigError(
                f"exclude_samples is said, and the order {self.name!r} draws its samples anew each "
                "epoch, so that each would be left with another length. Give those samples the "
                "weight 0 in surestep.samplers.weighted(weights), or a torch.utils.data.Subset of "
                "the data as train."
            )
        return replace(found, length=len(found._rest(0, 0, 1)))

    def _whole(self, epoch: int) -> Tensor:
        order = self.order.indices(0, epoch, 1)
        return torch.arange(self.skips.count) if order is None else order

    def __len__(self) -> int:
        return self.length

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Return the indices that are left of an epoch.

        Raises:
            DataError: they are not as many as in the first.
        """
        rest = self._rest(seed, epoch, batch_size)
        if len(rest) != self.length:
            raise DataError(
                f"The order {self.name!r} without exclude_samples has {len(rest)} samples in epoch "
                f"{epoch + 1} and {self.length} in the first. Each epoch needs as many: leave "
                "those samples out of the order itself."
            )
        return rest

    def _rest(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        kept = self.skips.kept()
        order = self.order.indices(seed, epoch, batch_size)
        return kept.nonzero().flatten() if order is None else order[kept[order]]

    def explain(self, cut: BatchLayout, seed: int) -> str:
        """Say what comes of the whole order, and how many are left out."""
        return f"{self.order.explain(cut, seed)}; without {self.skips}"


def filter_order(
    order: SampleOrder | None, skips: ExcludedSamples | None, *, shuffle: bool
) -> SampleOrder | None:
    """Return the order of the samples that stay; None is the plain one of all of them.

    Args:
        order: the Task's, which leaves out what it is to leave out.
        skips: what is left out of a plain order.
        shuffle: the plain order is a new one each epoch.
    """
    if skips is None or order is not None:
        return order
    return FilteredOrder(BasicOrder(shuffle, skips.count), skips, skips.left)


def remaining_data(task: Task, skips: ExcludedSamples | None) -> Task:
    """Return the task with the rest of its training data alone, to be read once as stored."""
    if skips is None:
        return task
    collate: Any = task.collate_fn or getattr(task.train, "collate_fn", None)
    rest = Subset(dataset_of(task.train, "train"), skips.kept().nonzero().flatten().tolist())
    return replace(task, train=rest, collate_fn=collate, sampler=None)
