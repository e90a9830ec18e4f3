"""Data whose elements are batches already: groups of samples by index, and no data."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, default_collate

from surestep.base.errors import DataError
from surestep.engine.batch import only_element
from surestep.engine.data.collated import CollatedBatch, collate_counted, count_collated
from surestep.engine.data.dataloader import check_batched, check_iteration
from surestep.engine.rng import derive_seed
from surestep.engine.task.task import Task


class BatchedDataset(Dataset[Any]):
    """Batches of different sizes over a dataset, for `Task(train=..., batched=True)`.

    The samples of a batch are fixed; the order of the batches is that of the run.

    Args:
        dataset: a map-style dataset.
        batches: sample indices of each batch: a list of lists, as `batch_by_tokens` returns, or a
            batch sampler, which is read once.
        collate_fn: a function from a list of samples to a batch; None is torch's `default_collate`.

    Raises:
        DataError: there is no batch, a batch is empty, or an index is not in the dataset.
    """

    def __init__(
        self,
        dataset: Any,
        batches: Iterable[Sequence[int]],
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.dataset = dataset
        self.batches = [[int(index) for index in batch] for batch in batches]
        self.collate_fn = collate_fn or default_collate
        if not self.batches:
            raise DataError("batches holds no batch. Pass a list of lists of indices.")
        for number, batch in enumerate(self.batches):
            if not batch or min(batch) < 0 or max(batch) >= len(dataset):
                raise DataError(
                    f"Batch {number} of batches holds the indices {batch}. Pass at least one, from "
                    f"0 to {len(dataset) - 1}."
                )

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Any:
        return self.collate_fn(self._samples(number))

    def _samples(self, number: int) -> list[Any]:
        return [self.dataset[index] for index in self.batches[number]]


def load_batch(dataset: Any, number: int) -> Any:
    """Return a batch of a dataset, a CollatedBatch if the dataset makes batches of samples."""
    if isinstance(dataset, BatchedDataset):
        if type(dataset).__getitem__ is BatchedDataset.__getitem__:
            return collate_counted(dataset.collate_fn, dataset._samples(number))
        batch = dataset[number]  # its class may change what was collated
        return CollatedBatch(batch, count_collated(dataset.batches[number], batch))
    if type(dataset) is Subset:
        return load_batch(dataset.dataset, dataset.indices[number])
    if type(dataset) is ConcatDataset:
        place = bisect_right(dataset.cumulative_sizes, number)
        before = dataset.cumulative_sizes[place - 1] if place else 0
        return load_batch(dataset.datasets[place], number - before)
    return dataset[number]


def batch_by_tokens(
    lengths: Sequence[int] | Tensor, max_tokens: int, *, seed: int = 0
) -> list[list[int]]:
    """Group samples of similar length into batches within a token budget, padding included.

    A batch of `n` samples, the longest of `length` tokens, satisfies `n * length <= max_tokens`.

    Args:
        lengths: tokens of each sample, (samples,).
        max_tokens: maximum number of tokens of a batch after padding.
        seed: decides which samples of equal length are in one batch.

    Returns:
        The sample indices of each batch; every sample is in exactly one batch.

    Raises:
        DataError: there are no samples, a length is below 1, or a sample is longer than
            `max_tokens`.
    """
    found = torch.as_tensor(lengths).cpu()
    if found.dim() != 1 or not len(found) or bool((found != found.long()).any()):
        raise DataError(
            f"lengths has shape {tuple(found.shape)} and {found.dtype}. Pass one whole number of "
            "tokens for each sample."
        )
    found = found.long()
    for index in (found.argmin(), found.argmax()):
        if not 1 <= found[index] <= max_tokens:
            raise DataError(
                f"Sample {int(index)} has {int(found[index])} tokens, which is not in 1 to "
                f"max_tokens={max_tokens}. Leave it out, truncate it, or set a larger max_tokens."
            )
    generator = torch.Generator().manual_seed(derive_seed("batches", seed))
    shuffled = torch.randperm(len(found), generator=generator)
    in_order = shuffled[torch.argsort(found[shuffled], stable=True)].tolist()
    batches: list[list[int]] = [[]]
    for index in in_order:  # lengths rise, so the newest sample is the longest of its batch
        if (len(batches[-1]) + 1) * int(found[index]) > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


class NoData(IterableDataset[Any]):
    """Endless empty batches, for a Task whose step makes its own data."""

    def __iter__(self) -> Iterator[tuple[()]]:
        while True:
            yield ()


def with_ready_batches(task: Task) -> Task:
    """Return the task with ready batches as elements, and no data as endless empty batches."""
    if task.train is None:
        task = replace(task, train=NoData())
    parts = {"train": task.train, **task.val_sets(), "test": task.test}
    for name, data in parts.items():
        check_iteration(data, name)
        check_batched(data, name, batched=task.batched)
    return replace(task, batched=False, collate_fn=only_element) if task.batched else task
