"""Some samples of a micro-batch, by row."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import SurestepError
from surestep.engine.batch import (
    Batch,
    MicroBatch,
    flatten_tensors,
    map_tensors,
    sum_part_items,
)
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import with_items


class CannotSplitBatchError(Exception):
    """A batch that cannot be cut into its samples; its text says why."""


def select_samples(batch: Batch, rows: Sequence[Sequence[int]], loss: Loss) -> Batch:
    """Return a batch of these rows of each micro-batch; one without any is left out.

    Raises:
        CannotCutError: a tensor has no row for each sample, or the items cannot be counted.
    """
    cut = [
        micro if len(wanted) == micro.samples else _cut(micro, wanted, loss)
        for micro, wanted in zip(batch.micro_batches, rows, strict=True)
        if wanted
    ]
    return batch._replace(
        micro_batches=tuple(cut),
        items=sum((each.items for each in cut), 0.0),
        samples=sum(each.samples for each in cut),
        part_items=sum_part_items(cut) if loss.components else (),
    )


def _cut(micro: MicroBatch, rows: Sequence[int], loss: Loss) -> MicroBatch:
    held = (micro.args, dict(micro.kwargs), micro.targets)
    if loss.is_in_training_only:
        return _counted(micro, rows, loss, _of_lists(held, rows, micro.samples))
    for tensor in flatten_tensors(held):
        if tensor.dim() == 0 or len(tensor) != micro.samples:
            raise CannotSplitBatchError(
                f"a tensor of shape {tuple(tensor.shape)} in a micro-batch of {micro.samples} has "
                "no row for each sample"
            )
    if not flatten_tensors(held):
        raise CannotSplitBatchError("the batch holds no tensors")
    return _counted(micro, rows, loss, map_tensors(held, lambda tensor: _rows(tensor, rows)))


def _counted(micro: MicroBatch, rows: Sequence[int], loss: Loss, held: Any) -> MicroBatch:
    """Return the micro-batch with these rows of its (args, kwargs, targets)."""
    args, kwargs, targets = held
    fewer = micro._replace(args=args, kwargs=kwargs, targets=targets, samples=len(rows))
    try:
        return with_items(fewer, loss, None)
    except (SurestepError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise CannotSplitBatchError(
            "its items are counted by a function of the whole batch"
        ) from error


def _of_lists(
    held: tuple[tuple[Any, ...], dict[str, Any], Any], rows: Sequence[int], samples: int
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return these samples of arguments and targets that are each a list of them, or a tensor.

    Raises:
        CannotCutError: one of them has no element for each sample.
    """

    def take(value: Any) -> Any:
        if not isinstance(value, (list, tuple, Tensor)) or len(value) != samples:
            raise CannotSplitBatchError(
                f"a {type(value).__name__} in it has no element for each sample"
            )
        return _rows(value, rows) if isinstance(value, Tensor) else [value[row] for row in rows]

    args, kwargs, targets = held
    return (
        tuple(map(take, args)),
        {name: take(each) for name, each in kwargs.items()},
        take(targets),
    )


def _rows(tensor: Tensor, rows: Sequence[int]) -> Any:
    return tensor[torch.tensor(rows, device=tensor.device)]
