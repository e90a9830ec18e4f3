"""Some samples of a micro-batch, by row."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import SurestepError
from surestep.engine.data.batch import Batch, MicroBatch, map_tensors, part_items_of, tensors_in
from surestep.engine.loss import Loss
from surestep.engine.losses.several import counted


class CannotCutError(Exception):
    """A batch that cannot be cut into its samples; its text says why."""


def with_rows(batch: Batch, rows: Sequence[Sequence[int]], loss: Loss) -> Batch:
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
        part_items=part_items_of(cut) if loss.parts else (),
    )


def _cut(micro: MicroBatch, rows: Sequence[int], loss: Loss) -> MicroBatch:
    held = (micro.args, dict(micro.kwargs), micro.targets)
    for tensor in tensors_in(held):
        if tensor.dim() == 0 or len(tensor) != micro.samples:
            raise CannotCutError(
                f"a tensor of shape {tuple(tensor.shape)} in a micro-batch of {micro.samples} has "
                "no row for each sample"
            )
    if not tensors_in(held):
        raise CannotCutError("the batch holds no tensors")
    args, kwargs, targets = map_tensors(held, lambda tensor: _rows(tensor, rows))
    fewer = micro._replace(args=args, kwargs=kwargs, targets=targets, samples=len(rows))
    try:
        return counted(fewer, loss, None)
    except (SurestepError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise CannotCutError("its items are counted by a function of the whole batch") from error


def _rows(tensor: Tensor, rows: Sequence[int]) -> Any:
    return tensor[torch.tensor(rows, device=tensor.device)]
