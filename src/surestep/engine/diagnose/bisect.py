"""Which samples of a batch make a step non-finite."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
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
from surestep.engine.losses.multi import named_losses, with_items

MAX_TRIES = 160  # steps that the search may take; each costs at most as much as the failed one
_FIRST = 8  # samples that are tried first: if each of them fails, none in particular is the cause
_COMPANIONS = 4  # finite samples beside which one is tried, if none can be tried alone
Sample = tuple[int, int]  # (micro-batch, row)


class CannotSplitBatchError(Exception):
    """The batch cannot be split into samples; the text says why."""


@dataclass(frozen=True)
class SampleRef:
    """A sample of the step.

    Attributes:
        position: in the order of the epoch; the row of a batch that you made yourself.
        index: in the dataset; None if it is not known.
    """

    position: int
    index: int | None


@dataclass(frozen=True)
class BisectResult:
    """The samples that make the step non-finite, each on its own.

    Attributes:
        samples: in order; empty if there are none, or if they are not known.
        how: how this was found, or why it is not known.
        known: the search was complete.
        of: the number of samples of the step.
    """

    samples: tuple[SampleRef, ...] = ()
    how: str = ""
    known: bool = True
    of: int = 0

    @property
    def is_specific(self) -> bool:
        """Whether at most half of the samples, or the only one, are the cause."""
        return len(self.samples) > 0 and (2 * len(self.samples) <= self.of or self.of == 1)


def find_samples(
    batch: Batch,
    loss: Loss,
    is_bad: Callable[[Batch], bool],
    *,
    independent: bool,
    index: Tensor | range | None,
) -> BisectResult:
    """Find the samples that make a step non-finite.

    Args:
        batch: on the device and transformed.
        loss: of the step.
        is_bad: takes a step on a batch; returns whether it was not finite.
        independent: the model treats each sample alone.
        index: of the sample at each position of the epoch; None if there is none.
    """
    alone = independent and all(entry.is_separable for _, entry in named_losses(loss))
    search = _Search(batch, loss, is_bad)
    try:
        found, how, known = search.run(alone=alone)
    except CannotSplitBatchError as error:
        found, how, known = [], f"the batch cannot be split into samples: {error}", False
    positions = sorted(batch.micro_batches[micro].position + row for micro, row in found)
    samples = tuple(
        SampleRef(at, None if index is None or at >= len(index) else int(index[at]))
        for at in positions
    )
    return BisectResult(samples, how, known, batch.samples)


class _Search:
    """Halves what is not finite until single samples are left.

    Samples that cannot be tried alone, since the model or the loss compares them, are tried beside
    companions: samples of the same micro-batch that are finite together.
    """

    def __init__(self, batch: Batch, loss: Loss, is_bad: Callable[[Batch], bool]) -> None:
        self.batch = batch
        self.loss = loss
        self.is_bad = is_bad
        self.tries = 0

    def run(self, *, alone: bool) -> tuple[list[Sample], str, bool]:
        """Return the samples, how they were found, and whether the search was complete."""
        micros = self.batch.micro_batches
        groups = [[(at, row) for row in range(micro.samples)] for at, micro in enumerate(micros)]
        samples = [sample for group in groups for sample in group]
        if len(samples) == 1:
            return samples, "it is the only one of the step", True
        if alone:
            first = samples[:: max(1, len(samples) // _FIRST)][:_FIRST]
            if all(self._fails([sample]) for sample in first):
                return (
                    [],
                    f"each of {len(first)} samples that were tested alone is not finite",
                    True,
                )
        found: list[Sample] = []
        has_untried = False
        for group in groups:
            companions = [] if alone else self._find_companions(group)
            if companions is None:
                has_untried = True
            else:
                rest = [sample for sample in group if sample not in companions]
                found += self._halve(rest, companions)
        known = not has_untried and self.tries < MAX_TRIES
        return found, self._explain(len(found), alone=alone, has_untried=has_untried), known

    def _explain(self, count: int, *, alone: bool, has_untried: bool) -> str:
        if self.tries >= MAX_TRIES:
            return f"the search ended after {self.tries} tries"
        if count and alone:
            return "each is not finite alone" if count > 1 else "it is not finite alone"
        if count:
            who, rest = ("each is", "them") if count > 1 else ("it is", "it")
            return (
                f"{who} not finite together with other samples, which are finite without {rest} "
                "(the "
                "model or the loss compares samples, so none was tested alone)"
            )
        if has_untried:
            return (
                "no part of a micro-batch is finite, and the model or the loss compares its "
                "samples, so none can be tested alone"
            )
        if alone:
            return "each sample is finite alone, but several together are not"
        return "both halves of the step are finite, but the full step is not"

    def _halve(self, samples: list[Sample], companions: list[Sample]) -> list[Sample]:
        """Return the samples that fail beside their companions."""
        found: list[Sample] = []
        groups = [samples]
        while groups and self.tries < MAX_TRIES:
            group = groups.pop(0)
            if not group or not self._fails(sorted([*companions, *group])):
                continue
            if len(group) == 1:
                found.append(group[0])
            else:
                groups = [*_halves(group), *groups]
        return found

    def _find_companions(self, samples: list[Sample]) -> list[Sample] | None:
        """Return some samples that are finite together; None if there are none."""
        groups, singles = [samples], list[Sample]()
        while groups and self.tries < MAX_TRIES:
            group = groups.pop(0)
            if len(group) == 1:
                singles += group
            elif not self._fails(group):
                return group[:_COMPANIONS]
            else:
                groups += _halves(group)
        for pair in combinations(singles, 2):
            if self.tries < MAX_TRIES and not self._fails([*pair]):
                return [*pair]
        return None

    def _fails(self, group: list[Sample]) -> bool:
        rows: list[list[int]] = [[] for _ in self.batch.micro_batches]
        for micro, row in group:
            rows[micro].append(row)
        part = select_samples(self.batch, rows, self.loss)
        if not part.items:  # such a batch updates nothing
            return False
        self.tries += 1
        return self.is_bad(part)


def _halves(group: list[Sample]) -> list[list[Sample]]:
    middle = len(group) // 2
    return [group[:middle], group[middle:]]


def select_samples(batch: Batch, rows: Sequence[Sequence[int]], loss: Loss) -> Batch:
    """Return a batch with these rows of each micro-batch; empty micro-batches are left out.

    Raises:
        CannotSplitBatchError: a tensor has no row for each sample, or items cannot be counted.
    """
    parts = [
        micro if len(wanted) == micro.samples else _select(micro, wanted, loss)
        for micro, wanted in zip(batch.micro_batches, rows, strict=True)
        if wanted
    ]
    return batch._replace(
        micro_batches=tuple(parts),
        items=sum((part.items for part in parts), 0.0),
        samples=sum(part.samples for part in parts),
        part_items=sum_part_items(parts) if loss.components else (),
    )


def _select(micro: MicroBatch, rows: Sequence[int], loss: Loss) -> MicroBatch:
    take = _take_elements if loss.is_in_training_only else _take_rows
    args, kwargs, targets = take((micro.args, dict(micro.kwargs), micro.targets), rows, micro)
    part = micro._replace(args=args, kwargs=kwargs, targets=targets, samples=len(rows))
    try:
        return with_items(part, loss, None)
    except (SurestepError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise CannotSplitBatchError(
            "its items are counted by a function of the whole batch"
        ) from error


def _take_rows(content: Any, rows: Sequence[int], micro: MicroBatch) -> Any:
    tensors = flatten_tensors(content)
    if not tensors:
        raise CannotSplitBatchError("the batch has no tensors")
    for tensor in tensors:
        if tensor.dim() == 0 or len(tensor) != micro.samples:
            raise CannotSplitBatchError(
                f"a tensor of shape {tuple(tensor.shape)} in a micro-batch of {micro.samples} has "
                "no row for each sample"
            )
    return map_tensors(content, lambda tensor: _index(tensor, rows))


def _take_elements(content: Any, rows: Sequence[int], micro: MicroBatch) -> Any:
    """Select samples of arguments that are each a list of samples, or a tensor."""

    def take(value: Any) -> Any:
        if not isinstance(value, (list, tuple, Tensor)) or len(value) != micro.samples:
            raise CannotSplitBatchError(
                f"a {type(value).__name__} in it has no element for each sample"
            )
        return _index(value, rows) if isinstance(value, Tensor) else [value[row] for row in rows]

    args, kwargs, targets = content
    return tuple(map(take, args)), {name: take(v) for name, v in kwargs.items()}, take(targets)


def _index(tensor: Tensor, rows: Sequence[int]) -> Any:
    return tensor[torch.tensor(rows, device=tensor.device)]
