"""The first batch and parts of it, on which a loss is computed to see whether it adds up."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.engine.batch import MicroBatch, flatten_tensors, map_tensors, move
from surestep.engine.checks.draws_by_sample import DrawsBySample
from surestep.engine.checks.samples import (
    can_be_split,
    has_samples,
    select_samples,
    split_in_two,
)
from surestep.engine.checks.varied_model import VariedModel, find_last_weights
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.collated import CollatedBatch
from surestep.engine.distributed.hang_monitor import is_network_error
from surestep.engine.losses.multi import LossHead, get_named, with_items

_FEW = 8  # the most samples that are read again, or of which each draws separately


class UnmeasurableError(Exception):
    """The loss cannot be computed for some samples alone."""


@contextmanager
def measuring() -> Iterator[None]:
    """Raise UnmeasurableError if code of the user fails, or memory runs out, for parts of a batch.

    Errors of the network are raised as such.
    """
    try:
        yield
    except Exception as error:
        if is_network_error(error):
            raise
        raise UnmeasurableError from error


class Part(NamedTuple):
    """Some samples of the batch, on the device."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Any
    items: float


@dataclass
class LossCalls:
    """Calls of a loss that copies of a batch share.

    Attributes:
        of_model: the model computes the loss, so these are the calls of the model.
        made: how many there were or will be in other checks of the first batch.
        take_double: the loss did not reject double precision.
        are_limited: comparisons that would be too many calls are left out.
        draws: makes the calls, if the loss or the model draws random numbers.
    """

    of_model: bool = False
    made: int = 1
    take_double: bool = True
    are_limited: bool = True
    draws: DrawsBySample | None = None


@dataclass(frozen=True)
class MeasuredBatch:
    """What a loss is checked on.

    Attributes:
        model: on its device, in eval mode.
        loader: splits batches and counts items.
        raw: the batch as it was read.
        head: the loss, with its outputs and its micro-batch on the device.
        counts_batch: a function of the batch counts the items.
        is_read: the batch is as the loader reads it.
        collates: parts are read and collated again, from the position of the batch on.
        total: the loss of the batch, summed over its items, if it is known.
        calls: of the loss.
    """

    model: nn.Module
    loader: BatchLoader
    raw: Any
    head: LossHead
    counts_batch: bool
    is_read: bool = True
    collates: bool = False
    total: Tensor | None = None
    calls: LossCalls = field(default_factory=LossCalls)
    _stored: dict[Any, Any] = field(default_factory=dict)  # also by copies that collate

    @property
    def what(self) -> str:
        """The name of what is checked."""
        return f"loss[{self.head.name!r}]" if self.head.name else "loss"

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        return self.head.micro_batch.samples

    @property
    def few(self) -> int:
        """The most samples to compare at once."""
        is_slow = self.collates or self.calls.draws is not None
        return min(self.samples, _FEW) if is_slow else self.samples

    @property
    def is_alone(self) -> bool:
        """Whether the model can be called as often as needed: no other rank has to call it too."""
        return self.loader.layout.ranks == 1

    @property
    def can_collate(self) -> bool:
        """Whether fewer samples can be collated, which gives something else than rows."""
        return self.is_read and self.loader.can_collate_again

    @property
    def has_rows(self) -> bool:
        """Whether some samples are rows of the batch."""
        return self._has_rows(self.raw) or (not self.counts_batch and self._has_rows(self._given))

    def _has_rows(self, batch: Any) -> bool:
        # What a custom function collates may have something of all samples in one row.
        check = can_be_split if self.loader.source.collates else has_samples
        return check(batch, self.samples)

    @property
    def _given(self) -> Any:
        micro = self.head.micro_batch
        return micro.args, dict(micro.kwargs), micro.targets

    def part(self, rows: Sequence[int]) -> Part:
        """Return some samples; `rows` are a range if the batch collates.

        Raises:
            UnmeasurableError: the batch cannot be split.
        """
        loss, name, samples = self.head.loss, self.head.name, self.samples
        if not (self.collates or self._has_rows(self.raw)):
            if not self.has_rows:
                raise UnmeasurableError
            args, kwargs, targets = select_samples(self._given, rows, samples)
            return Part(args, kwargs, targets, loss.count_items(None, targets, len(rows)))
        raw = self._collate(rows) if self.collates else select_samples(self.raw, rows, samples)
        raw, collated = raw if isinstance(raw, CollatedBatch) else (raw, None)
        args, kwargs, targets = self.loader.split(raw)
        targets = get_named(targets, name, "targets") if name else targets
        micro = MicroBatch(args, kwargs, targets, 0, len(rows), 0, collated=collated)
        items = with_items(micro, loss, raw).items
        args, kwargs, targets = move((args, dict(kwargs), targets), self.loader.device)
        return Part(args, kwargs, targets, items)

    def _collate(self, rows: Sequence[int]) -> Any:
        key = "collated", tuple(rows)
        if key not in self._stored:
            first = self.head.micro_batch.position
            self._stored[key] = self.loader.read_samples(
                range(first + rows[0], first + rows[-1] + 1)
            )
        return map_tensors(self._stored[key], lambda tensor: tensor.clone())

    def call(self, rows: Sequence[int], seed: int | None = None) -> Any:
        """Return the outputs of the model for some samples, with last weights varied by a seed.

        Raises:
            UnmeasurableError: it does not take them.
        """
        if self.has_kept(rows, seed):
            return self._stored.pop(self._key(rows, seed))
        with measuring():
            args, kwargs, _, _ = self.part(rows)
            model: Any = self.model
            if seed is not None:
                model = self.varied
                model.vary(seed)
            return self._find_outputs(self.run("model", rows, model, *args, **kwargs))

    def run(
        self, what: str, rows: Sequence[int], function: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        """Return what a function returns for some samples; `what` is "loss" or "model"."""
        calls, call = self.calls, partial(function, *args, **kw)
        calls.made += calls.of_model == (what == "model")
        return calls.draws.call((what, self.collates), rows, call) if calls.draws else call()

    @property
    def drew_the_same(self) -> bool:
        """Whether all calls for some samples had the same random numbers for each of them."""
        draws, keys = self.calls.draws, (("loss", self.collates), ("model", self.collates))
        return draws is None or draws.were_the_same(*keys)

    def draws(self, rows: Sequence[int]) -> bool:
        """Return whether reading or collating samples again gives something else."""
        first = self.head.micro_batch.position
        where = range(first + rows[0], first + rows[-1] + 1)
        again = self.loader.read_samples(where, reseeded=True)
        pairs = zip(flatten_tensors(self._collate(rows)), flatten_tensors(again), strict=True)
        return not all(torch.equal(one, other) for one, other in pairs)

    def _find_outputs(self, outputs: Any) -> Any:
        return get_named(outputs, self.head.name, "outputs") if self.head.name else outputs

    def keep(self, rows: Sequence[int], seed: int | None, outputs: Any) -> None:
        """Keep outputs of the model for the next call."""
        self._stored[self._key(rows, seed)] = outputs

    def has_kept(self, rows: Sequence[int], seed: int | None) -> bool:
        """Return whether the next call for these samples returns outputs that were kept."""
        return self._key(rows, seed) in self._stored

    def _key(self, rows: Sequence[int], seed: int | None) -> Any:
        return "outputs", self.collates, tuple(rows), seed

    @property
    def varied(self) -> VariedModel | None:
        """The model with other last weights; None if it takes no part of the batch."""
        if "varied" not in self._stored:
            self._stored["varied"] = self._vary() if self.is_alone else None
        varied: VariedModel | None = self._stored["varied"]
        return varied

    def _vary(self) -> VariedModel | None:
        given = replace(self, collates=self.can_collate)  # whose outputs are compared as they are
        rows = split_in_two(given.few).all_rows()[1]
        try:
            with measuring():
                args, kwargs, _, _ = given.part(rows)
                found = given.run("model", rows, find_last_weights, self.model, args, kwargs)
                last, outputs = found
                given.keep(rows, None, self._find_outputs(outputs))
                return VariedModel(self.model, last) if last else None
        except UnmeasurableError:
            return None
