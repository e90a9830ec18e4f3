"""Why the loss of a split is not finite: which samples, and whether the data are the cause.

Nothing is searched while a split is measured. Only if its loss is not finite, it is read again.
"""

import json
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.base.errors import DataError
from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.sources import InMemory
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import split_heads

_LISTED = 5  # samples that a message lists
_WHAT = ("inputs", "targets")
Forward = Callable[[MicroBatch], Any]


class Found(NamedTuple):
    """Positions in a split whose loss is not finite, by where the first such value is.

    `neither` holds the first sample of a micro-batch, since its outputs are not finite.
    """

    inputs: list[int]
    targets: list[int]
    neither: list[int]


def explain_nonfinite(
    part: str,
    micro_batches: Iterable[MicroBatch],
    loss: Loss,
    forward: Forward,
    world: Communicator,
) -> str:
    """Return which samples make the loss of a split not finite, and what to do; "" if none does.

    `forward` is called for each micro-batch of this rank, since ranks share a forward.
    """
    found = Found([], [], [])
    for micro in micro_batches:
        outputs = forward(micro)
        if micro.items and not _is_finite_loss(loss, outputs, micro):
            for positions, more in zip(found, _bad_samples(micro), strict=True):
                positions += more
    of_ranks = [json.loads(text) for text in world.all_gather_text(json.dumps(found))]
    found = Found(*(sorted(chain.from_iterable(kind)) for kind in zip(*of_ranks, strict=True)))
    for what, positions in zip(_WHAT, (found.inputs, found.targets), strict=True):
        if positions:
            return _describe_data(part, what, positions)
    if not found.neither:
        return ""
    return (
        f"{part}/loss is not finite: the inputs and targets of {part} are finite, and the loss of "
        f"the batch that begins at sample {found.neither[0]} is not. Check the model's outputs "
        "for it, and the precision: fp16 overflows above 65,504."
    )


def check_in_memory(part: str, loader: BatchLoader, loss: Loss, forward: Forward) -> None:
    """Check a split in memory before the run.

    Raises:
        DataError: a sample with a value that is not finite makes the loss not finite.
    """
    if not isinstance(loader.source, InMemory):
        return
    bad = _nonfinite_rows(loader.source)
    for position in bad[:_LISTED]:
        raw = next(loader.source.read(0, None, [range(position, position + 1)]))
        micro = loader.move_micro(loader.micro_batch(raw, position, 1))
        found = _bad_samples(micro)
        if micro.items and not found.neither and not _is_finite_loss(loss, forward(micro), micro):
            kind = 0 if found.inputs else 1
            raise DataError(_describe_data(part, _WHAT[kind], bad))


def _nonfinite_rows(source: InMemory) -> list[int]:
    """Return the positions of samples with a value that is not finite."""
    rows: set[int] = set()
    for tensor in flatten_tensors(source.tensors):
        # A sum is quick and needs no memory; it may overflow, so the rows are checked again.
        if tensor.is_floating_point() and not math.isfinite(float(tensor.sum())):
            rows.update(_bad_rows(tensor))
    if source.index is None:
        return sorted(rows)
    return [position for position, row in enumerate(source.index.tolist()) if row in rows]


def _bad_rows(tensor: Tensor) -> list[int]:
    bad = ~torch.isfinite(tensor)
    found: list[int] = (bad.flatten(1).any(1) if bad.dim() > 1 else bad).nonzero()[:, 0].tolist()
    return found


def _bad_samples(micro: MicroBatch) -> Found:
    """Return the samples of a micro-batch with a value that is not finite."""
    found = []
    for value in ((micro.args, dict(micro.kwargs)), micro.targets):
        rows: set[int] = set()
        for tensor in flatten_tensors(value):
            if tensor.is_floating_point() and tensor.dim() and len(tensor) == micro.samples:
                rows.update(micro.position + row for row in _bad_rows(tensor))
        found.append(sorted(rows))
    inputs, targets = found
    return Found(inputs, targets, [] if inputs or targets else [micro.position])


def _is_finite_loss(loss: Loss, outputs: Any, micro: MicroBatch) -> bool:
    values = [
        head.loss.value(head.outputs, head.loss.targets_of(head.micro_batch))
        for head in split_heads(loss, outputs, micro)
    ]
    return all(bool(torch.isfinite(value).all()) for value in flatten_tensors(values))


def _describe_data(part: str, what: str, positions: list[int]) -> str:
    listed = ", ".join(map(str, positions[:_LISTED])) + (", ..." * (len(positions) > _LISTED))
    which = f"sample {listed} has" if len(positions) == 1 else f"samples {listed} have"
    return (
        f"{part}/loss is not finite: {which} NaN or infinite values in the {what}. It "
        f"cannot decide which checkpoint is best. Correct or remove {len(positions)} "
        f"sample{'s' * (len(positions) > 1)} of {part} (numbers count from 0)."
    )


def forward_of(model: nn.Module, autocast: AbstractContextManager[Any]) -> Forward:
    """Return a function that computes the outputs of a micro-batch."""

    def forward(micro: MicroBatch) -> Any:
        with autocast:
            return model(*micro.args, **micro.kwargs)

    return forward
