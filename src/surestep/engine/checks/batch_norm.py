"""BatchNorm and a batch of one sample, which torch rejects if a channel then has one value."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import DataError
from surestep.engine.model.forward_errors import OTHER_LAYER
from surestep.engine.plan.batching import BatchLayout, Single, find_single
from surestep.engine.state.average import BATCH_NORM


@contextmanager
def watch_norms(model: nn.Module, samples: int) -> Iterator[set[nn.Module]]:
    """Collect the BatchNorm layers that see one value per sample and channel in a forward.

    Args:
        model: whose forward runs inside the block.
        samples: of the batch that it runs on.
    """
    found: set[nn.Module] = set()

    def see(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        shape = inputs[0].shape if inputs and isinstance(inputs[0], Tensor) else torch.Size()
        if len(shape) > 1 and shape.numel() == samples * shape[1]:
            found.add(module)

    norms = [each for each in model.modules() if isinstance(each, BATCH_NORM)]
    handles = [each.register_forward_pre_hook(see) for each in norms]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def check_training(
    model: nn.Module,
    narrow: set[nn.Module],
    cut: BatchLayout,
    total_steps: int,
) -> None:
    """Check that no forward in training gives a BatchNorm layer one value per channel.

    Args:
        model: that is trained.
        narrow: layers in training mode that see one value per sample and channel.
        cut: of the training data.
        total_steps: of the run, which may end before its first small batch.

    Raises:
        DataError: one does; which batch, and the ways out.
    """
    single = find_single(cut, total_steps)
    if single is not None and (names := _names(model, narrow, cut.ranks)):
        raise DataError(f"{_sentence(names, single)} {_ways_out(cut, single)}.")


def check_validation(model: nn.Module, narrow: set[nn.Module], part: str, cut: BatchLayout) -> None:
    """Check the same of a validation set, for layers that keep no running statistics.

    Raises:
        DataError: its last batch has one sample.
    """
    bare = {each for each in narrow if getattr(each, "running_mean", None) is None}
    single = find_single(cut, None)
    if single is not None and (names := _names(model, bare, cut.ranks)):
        raise DataError(
            f"{part} data: {_sentence(names, single)} Set another validation.batch_size than "
            f"{cut.micro_batch_size}; or track_running_stats=True; or {OTHER_LAYER}."
        )


def _names(model: nn.Module, layers: set[nn.Module], ranks: int) -> list[str]:
    """Name layers; SyncBatchNorm takes the values of all ranks."""
    alone = ranks == 1
    return [
        name
        for name, each in model.named_modules()
        if each in layers and (alone or not isinstance(each, nn.SyncBatchNorm))
    ]


def _sentence(names: list[str], single: Single) -> str:
    layers = ", ".join(map(repr, names[:3])) + (" ..." if len(names) > 3 else "")
    which = "every batch" if single.samples_left is None else "the last batch of an epoch"
    if single.is_micro or single.rank is not None:
        left = single.samples_left
        which += "" if left is None else f" ({left} sample{'s' if left > 1 else ''})"
        which += " has a micro-batch of one sample"
        which += "" if single.rank is None else f" on rank {single.rank}"
    else:
        which += " has one sample"
    return f"BatchNorm {layers} would get one value per channel, which torch rejects: {which}."


def _ways_out(cut: BatchLayout, single: Single) -> str:
    ways = [OTHER_LAYER]
    if single.is_micro and (size := _first_that_fits(_other_micro_batches(cut))) is not None:
        ways.insert(0, f"use micro_batch_size={size.micro_batch_size}")
    if (size := _first_that_fits(_other_batches(cut))) is not None:
        ways.insert(0, f"use batch_size={size.batch_size}")
    if single.samples_left is not None and (cut.samples or 0) > cut.batch_size:
        ways.insert(0, "set data.drop_last=True")
    text = "; or ".join(ways)
    return text[0].upper() + text[1:]


def _first_that_fits(cuts: Iterable[BatchLayout]) -> BatchLayout | None:
    return next((each for each in cuts if find_single(each, None) is None), None)


def _other_batches(cut: BatchLayout) -> Iterator[BatchLayout]:
    """Yield cuts of a batch size nearby, nearest first; a batch that was not split stays so."""
    is_split = cut.micro_batch_size * cut.ranks < cut.batch_size
    for size in _around(cut.batch_size):
        micro = min(cut.micro_batch_size, size) if is_split else -(-size // cut.ranks)
        yield cut._replace(batch_size=size, micro_batch_size=micro)


def _other_micro_batches(cut: BatchLayout) -> Iterator[BatchLayout]:
    for size in _around(cut.micro_batch_size):
        if size <= cut.batch_size:
            yield cut._replace(micro_batch_size=size)


def _around(size: int) -> Iterator[int]:
    """Yield sizes nearby that are above 1, nearest first."""
    for step in range(1, max(8, size)):
        yield from (other for other in (size - step, size + step) if other > 1)
