"""The loss of some samples of the first batch, summed over its items."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.engine.batch import flatten_tensors, map_tensors, move
from surestep.engine.checks.samples import has_samples, select_samples
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.device import sum_dtype
from surestep.engine.distributed.errors import is_of_network
from surestep.engine.losses.adapt import IGNORED, loss_targets
from surestep.engine.losses.base import HALF
from surestep.engine.losses.multi import LossHead, get_named

TOLERANCE_OF_HALF = 3e-2
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}


class UnmeasurableError(Exception):
    """The loss cannot be computed for some samples alone."""


@contextmanager
def measuring() -> Iterator[None]:
    """Run code of the user, which may raise anything for parts of a batch or varied numbers.

    Raises:
        UnmeasurableError: it failed, or memory ran out; errors of the network are raised as such.
    """
    try:
        yield
    except Exception as error:
        if is_of_network(error):
            raise
        raise UnmeasurableError from error


@dataclass(frozen=True)
class FirstBatch:
    """What a loss is checked on.

    Attributes:
        model: on its device, in eval mode.
        feed: takes batches apart and counts items.
        raw: the batch as it was read.
        head: the loss, with its outputs and its micro-batch on the device.
        counts_batch: items are counted by a function of the batch as it was read.
    """

    model: nn.Module
    feed: BatchLoader
    raw: Any
    head: LossHead
    counts_batch: bool

    def part(self, rows: range) -> tuple[tuple[Any, ...], dict[str, Any], Any, float]:
        """Return (args, kwargs, targets, items) of some samples, on the device.

        Raises:
            UnmeasurableError: the batch cannot be split.
        """
        micro, loss, name = self.head.micro, self.head.loss, self.head.name
        if has_samples(self.raw, micro.samples):
            raw = select_samples(self.raw, rows, micro.samples)
            args, kwargs, targets = self.feed.split(raw)
            targets = get_named(targets, name, "targets") if name else targets
            items = loss.items(raw, targets)
            args, kwargs, targets = move((args, dict(kwargs), targets), self.feed.device)
            return args, kwargs, targets, items
        given = (micro.args, dict(micro.kwargs), micro.targets)
        if self.counts_batch or not has_samples(given, micro.samples):
            raise UnmeasurableError
        args, kwargs, targets = select_samples(given, rows, micro.samples)
        return args, kwargs, targets, loss.items(None, targets)


class Term(NamedTuple):
    """The loss of some samples.

    Attributes:
        value: what the loss returned; 0 where nothing is counted.
        items: what it is divided by, as the Task declares it.
        total: the loss summed over its items, as the declaration has it.
        samples: how many samples there are.
        tokens: targets that are not ignored; None where targets are not integers.
        tolerance: the relative error that rounding explains.
    """

    value: float
    items: float
    total: float
    samples: int
    tokens: int | None
    tolerance: float


class Terms:
    """Computes the loss of some samples, in double precision where the loss takes it."""

    def __init__(self, batch: FirstBatch) -> None:
        self.batch = batch
        self.loss = batch.head.loss
        widest = sum_dtype(batch.feed.device)
        self._widest = widest if self.loss.kind != "model" else None
        self._taught = None
        if self.loss.teacher is not None:
            self._taught = loss_targets(self.loss, batch.head.micro)[1]

    def of(self, outputs: Any, rows: range, *, least_tolerance: float = 0.0) -> Term:
        """Return the loss of some samples.

        Args:
            outputs: of these samples alone; the loss may write into them.
            rows: the samples.
            least_tolerance: the relative error of the outputs.

        Raises:
            UnmeasurableError: the loss fails.
        """
        with measuring():
            targets, items = self.batch.part(rows)[2:]
            tokens = _tokens(targets)
            if not items:
                return Term(0.0, 0.0, 0.0, len(rows), tokens, 0.0)
            if self._taught is not None:
                taught = select_samples(self._taught, rows, self.batch.head.micro.samples)
                targets = targets, taught
            value = self._value(outputs, targets)
            number = float(value)
        half = self._widest is None and any(each.dtype in HALF for each in flatten_tensors(outputs))
        rounding = TOLERANCE_OF_HALF if half else _TOLERANCES.get(value.dtype, TOLERANCE_OF_HALF)
        total = number if self.loss.is_sum else number * items
        return Term(number, items, total, len(rows), tokens, max(rounding, least_tolerance))

    def _value(self, outputs: Any, targets: Any) -> Tensor:
        if self._widest is not None:
            try:
                return self._added(*map_tensors((outputs, targets), self._widen))
            except Exception:  # tried again below
                pass
        value = self._added(outputs, targets)
        self._widest = None  # double precision was rejected, by class weights in fp32 for instance
        return value

    def _added(self, outputs: Any, targets: Any) -> Tensor:
        value = self.loss.value(outputs, targets)
        return value if isinstance(value, Tensor) else self.loss.to_sum(value, 1.0)[0]

    def _widen(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._widest) if tensor.is_floating_point() else tensor


def _tokens(targets: Any) -> int | None:
    """Count targets that are not ignored; None where targets are not integers."""
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.is_complex():
        return None
    return int((targets != IGNORED).sum())
