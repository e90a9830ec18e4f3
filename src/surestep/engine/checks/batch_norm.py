"""BatchNorm and a batch of one sample, which torch rejects if a channel then has one value."""

from collections.abc import Iterator
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
    """Collect the BatchNorm layers that see one value per sample and channel in a forward."""
    found: set[nn.Module] = set()

    def see(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        shape = inputs[0].shape if inputs and isinstance(inputs[0], Tensor) else torch.Size()
        if len(shape) > 1 and shape.numel() == samples * shape[1]:
            found.add(module)

    norms = [module for module in model.modules() if isinstance(module, BATCH_NORM)]
    handles = [norm.register_forward_pre_hook(see) for norm in norms]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def check_training(
    model: nn.Module, narrow: set[nn.Module], layout: BatchLayout, total_steps: int
) -> None:
    """Check that no forward in training gives a BatchNorm layer one value per channel.

    The layers that are `narrow` train and see one value per sample and channel. A run of
    `total_steps` may end before its first small batch.
    """
    single = find_single(layout, total_steps)
    if single is not None and (names := _names(model, narrow, layout.ranks)):
        raise DataError(f"{_describe(names, single)} {_ways_out(layout, single)}.")


def check_validation(
    model: nn.Module, narrow: set[nn.Module], part: str, layout: BatchLayout
) -> None:
    """Check the same of a validation set, for layers without running statistics."""
    bare = {layer for layer in narrow if getattr(layer, "running_mean", None) is None}
    single = find_single(layout, None)
    if single is not None and (names := _names(model, bare, layout.ranks)):
        raise DataError(
            f"{part} data: {_describe(names, single)} Use a different validation.batch_size than "
            f"{layout.micro_batch_size}; or track_running_stats=True; or {OTHER_LAYER}."
        )


def _names(model: nn.Module, layers: set[nn.Module], ranks: int) -> list[str]:
    """Name layers; SyncBatchNorm takes the values of all ranks."""
    return [
        name
        for name, module in model.named_modules()
        if module in layers and (ranks == 1 or not isinstance(module, nn.SyncBatchNorm))
    ]


def _describe(names: list[str], single: Single) -> str:
    layers = ", ".join(map(repr, names[:3])) + (" ..." if len(names) > 3 else "")
    left = single.samples_left
    which = "every batch" if left is None else "the last batch of an epoch"
    if single.is_micro or single.rank is not None:
        which += "" if left is None else f" ({left} sample{'s' if left > 1 else ''})"
        which += " has a micro-batch of one sample"
        which += "" if single.rank is None else f" on rank {single.rank}"
    else:
        which += " has one sample"
    return f"BatchNorm {layers} would get one value per channel, which torch rejects: {which}."


def _ways_out(layout: BatchLayout, single: Single) -> str:
    """Return what to change; sizes nearby are tried, nearest first."""
    ways = []
    batch, micro, ranks = layout.batch_size, layout.micro_batch_size, layout.ranks
    if single.samples_left is not None and (layout.samples or 0) > batch:
        ways.append("set data.drop_last=True")
    for size in _sizes_around(batch):
        split = min(micro, size) if micro * ranks < batch else -(-size // ranks)
        if _fits(layout._replace(batch_size=size, micro_batch_size=split)):
            ways.append(f"use batch_size={size}")
            break
    for size in _sizes_around(micro) if single.is_micro else ():
        if size <= batch and _fits(layout._replace(micro_batch_size=size)):
            ways.append(f"use micro_batch_size={size}")
            break
    text = "; or ".join([*ways, OTHER_LAYER])
    return text[0].upper() + text[1:]


def _fits(layout: BatchLayout) -> bool:
    return find_single(layout, None) is None


def _sizes_around(size: int) -> Iterator[int]:
    for step in range(1, max(8, size)):
        yield from (other for other in (size - step, size + step) if other > 1)
