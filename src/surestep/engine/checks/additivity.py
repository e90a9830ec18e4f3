"""Whether a loss adds up: a batch must give the same as any parts of it together.

That makes an update independent of the micro-batch size, and an evaluation independent of its batch
size. A loss that is a sum, or a mean over something other than its items, does not add up.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch, flatten_tensors, map_tensors, move
from surestep.engine.checks.samples import (
    TRIALS,
    Split,
    draw_classes,
    draw_splits,
    has_opaque,
    has_samples,
    is_per_sample,
    select_samples,
    take_samples,
)
from surestep.engine.checks.varied_model import VariedModel, find_last_weights
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.device import sum_dtype
from surestep.engine.distributed.hang_monitor import is_network_error
from surestep.engine.losses.adapt import IGNORED, Loss
from surestep.engine.losses.base import HALF
from surestep.engine.losses.multi import LossHead, get_named, with_items
from surestep.engine.rng import ModelRNG

TOLERANCE_OF_HALF = 3e-2
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}
_TOLERANCE_OF_CALLS = 1e-4  # kernels sum in another order for another number of samples
_TOLERANCE_OF_DRAWS = 1e-2  # models with losses in training draw what those are means over
_REPEATS = 16  # of a comparison that draws random numbers
_CALLED = 5  # the most samples of a comparison for which the model is called again


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


@dataclass(frozen=True)
class MeasuredBatch:
    """What a loss is checked on.

    Attributes:
        model: on its device, in eval mode.
        loader: splits batches and counts items.
        raw: the batch as it was read.
        head: the loss, with its outputs and its micro-batch on the device.
        counts_batch: a function of the batch counts the items.
    """

    model: nn.Module
    loader: BatchLoader
    raw: Any
    head: LossHead
    counts_batch: bool

    @property
    def is_alone(self) -> bool:
        """Whether the model can be called as often as needed: no other rank has to call it too."""
        return self.loader.layout.ranks == 1

    @cached_property
    def joins_samples(self) -> bool:
        """Whether a tensor has what belongs to all samples in one row, as nodes of joined graphs.

        Then only the data can split the batch, as also if time comes first. What all samples share
        has a fixed length.
        """
        samples = self.head.micro_batch.samples
        whole = [x for x in flatten_tensors(self.raw) if x.dim()]
        rows = [len(x) == samples for x in whole]
        if has_opaque(self.raw) or all(rows):
            return False
        position = self.head.micro_batch.position
        part = self.loader.read_samples(range(position, position + samples - 1))
        found = [x for x in flatten_tensors(part) if x.dim()]
        return len(found) == len(whole) and (
            not any(rows)
            or any(len(x) not in (samples, len(y)) for x, y in zip(whole, found, strict=True))
        )

    def read_part(self, rows: range) -> Any:
        """Return some samples of the batch as they are read."""
        samples, position = self.head.micro_batch.samples, self.head.micro_batch.position
        if not self.joins_samples:
            return select_samples(self.raw, rows, samples)
        return self.loader.read_samples(range(position + rows.start, position + rows.stop))

    def part(self, rows: range) -> tuple[tuple[Any, ...], dict[str, Any], Any, float]:
        """Return (args, kwargs, targets, items) of some samples, on the device.

        Raises:
            UnmeasurableError: the batch cannot be split.
        """
        micro, loss, name = self.head.micro_batch, self.head.loss, self.head.name
        if self.joins_samples or has_samples(self.raw, micro.samples):
            raw = self.read_part(rows)
            args, kwargs, targets = self.loader.split(raw)
            targets = get_named(targets, name, "targets") if name else targets
            part = MicroBatch(args, kwargs, targets, 0, len(rows), 0)
            items = with_items(part, loss, raw).items
            args, kwargs, targets = move((args, dict(kwargs), targets), self.loader.device)
            return args, kwargs, targets, items
        given = (micro.args, dict(micro.kwargs), micro.targets)
        if self.counts_batch or not has_samples(given, micro.samples):
            raise UnmeasurableError
        args, kwargs, targets = select_samples(given, rows, micro.samples)
        return args, kwargs, targets, loss.count_items(None, targets, len(rows))

    def call(self, rows: range, varied: VariedModel | None = None) -> Any:
        """Return the outputs of the model for some samples.

        Raises:
            UnmeasurableError: it does not take them.
        """
        with measuring():
            args, kwargs, _, _ = self.part(rows)
            outputs = (varied or self.model)(*args, **kwargs)
            return get_named(outputs, self.head.name, "outputs") if self.head.name else outputs


class Term(NamedTuple):
    """The loss of some samples.

    Attributes:
        value: what the loss returned; 0 if nothing is counted.
        items: its denominator, as the Task declares it.
        total: the loss summed over its items, as the declaration has it.
        samples: how many samples there are.
        tokens: targets that are not ignored; None if targets are not integers.
        tolerance: the relative error that rounding explains.
    """

    value: float
    items: float
    total: float
    samples: int
    tokens: int | None
    tolerance: float


class Terms:
    """Computes the loss of some samples, in double precision if the loss takes it."""

    def __init__(self, batch: MeasuredBatch, targets: Tensor | None = None) -> None:
        self.batch = batch
        self.targets = targets  # in place of those of the batch
        self.loss = batch.head.loss
        self._widest = None if self.loss.kind == "model" else sum_dtype(batch.loader.device)
        self._teacher_outputs = None
        if self.loss.teacher is not None:
            self._teacher_outputs = self.loss.targets_of(batch.head.micro_batch)[1]

    def compute(self, outputs: Any, rows: range, *, least_tolerance: float = 0.0) -> Term:
        """Return the loss of some samples, whose outputs have a relative error.

        The outputs are of these samples alone; the loss may write into them.

        Raises:
            UnmeasurableError: the loss fails.
        """
        with measuring():
            targets, items = self.batch.part(rows)[2:]
            if self.targets is not None:
                targets = self.targets[rows.start : rows.stop].clone()
                items = self.loss.count_items(None, targets, len(rows))
            tokens = None
            is_class = isinstance(targets, Tensor) and not targets.is_floating_point()
            if is_class and not targets.is_complex():
                tokens = int((targets != IGNORED).sum())
            if not items:
                return Term(0.0, 0.0, 0.0, len(rows), tokens, 0.0)
            if self._teacher_outputs is not None:
                samples = self.batch.head.micro_batch.samples
                targets = targets, select_samples(self._teacher_outputs, rows, samples)
            value = self._value(outputs, targets)
            number = float(value)
        half = self._widest is None and has_half(outputs)
        rounding = TOLERANCE_OF_HALF if half else _TOLERANCES.get(value.dtype, TOLERANCE_OF_HALF)
        total = number if self.loss.is_sum else number * items
        return Term(number, items, total, len(rows), tokens, max(rounding, least_tolerance))

    def _value(self, outputs: Any, targets: Any) -> Tensor:
        if (widest := self._widest) is not None:

            def widen(tensor: Tensor) -> Tensor:
                return tensor.to(widest) if tensor.is_floating_point() else tensor

            try:
                return self._sum_parts(*map_tensors((outputs, targets), widen))
            except Exception:  # tried again below
                pass
        value = self._sum_parts(outputs, targets)
        self._widest = None  # double precision was rejected, by class weights in fp32 for instance
        return value

    def _sum_parts(self, outputs: Any, targets: Any) -> Tensor:
        value = self.loss.value(outputs, targets)
        return value if isinstance(value, Tensor) else self.loss.to_sum(value, 1.0)[0]


def has_half(outputs: Any) -> bool:
    """Return whether some of the nested outputs are in half precision."""
    return any(tensor.dtype in HALF for tensor in flatten_tensors(outputs))


class Gap(NamedTuple):
    """The loss of some samples beside that of disjoint parts of them."""

    whole: Term
    parts: tuple[Term, ...]
    varied: bool

    @property
    def size(self) -> float:
        """The difference of the sums over items, relative to the size of their terms."""
        totals = [part.total for part in self.parts]
        scale = abs(self.whole.total) + sum(map(abs, totals))
        return (sum(totals) - self.whole.total) / scale if scale else 0.0

    @property
    def is_wide(self) -> bool:
        """Whether rounding cannot explain the difference."""
        if not math.isfinite(self.whole.total):
            return False  # the loss is not defined for these outputs
        return not abs(self.size) <= self.tolerance  # NaN in a part is a difference

    @property
    def tolerance(self) -> float:
        """The relative error that rounding explains."""
        return max(entry.tolerance for entry in (self.whole, *self.parts))


Trial = Callable[[int], Gap]  # takes the number of times that it was run before


def check_additivity(batch: MeasuredBatch, *, calls_model: bool) -> None:
    """Compare the loss of the first batch with the loss of its parts.

    Outputs are split by sample if they can be; else the model is called on the parts, if
    `calls_model` allows that: each rank then calls it as often. A single sample shows nothing.

    Raises:
        TaskError: the loss does not add up over its items.
    """
    head, samples = batch.head, batch.head.micro_batch.samples
    if samples < 2:
        return
    terms, gap = Terms(batch), None
    is_split = head.loss.kind != "model" and is_per_sample(head.outputs, samples)
    if is_split:
        gap = _first_wide(terms, _output_trials(terms))
        classes = draw_classes(head.micro_batch.targets, head.outputs, head.loss)
        if gap is None and classes is not None and not batch.counts_batch:
            terms = Terms(batch, classes)
            gap = _first_wide(terms, _output_trials(terms))
        if gap is None:
            return
        calls_model = calls_model and batch.is_alone
    split = next(draw_splits(samples, samples))
    try:
        parts = [batch.call(rows) for rows in split.parts()] if calls_model else []
    except UnmeasurableError:  # the model takes no part of the batch
        parts = []
    sizes = map(len, split.parts())
    by_chance = is_split and not all(map(is_per_sample, parts, sizes))  # as many rows as samples
    if parts and (not is_split or by_chance):
        gap = _first_wide(terms, _call_trials(terms, split, (head.outputs, *parts)))
    if gap is not None:
        how = " (with outputs varied at random)" if gap.varied else ""
        how = " (with other outputs and classes)" if terms.targets is not None else how
        raise TaskError(_explain(terms.loss, gap, head.name, how))


def _first_wide(terms: Terms, trials: Iterable[Trial]) -> Gap | None:
    """Return the first gap that rounding cannot explain; what cannot be computed shows nothing.

    A loss or a model that draws random numbers has to differ on average.
    """
    randomness = ModelRNG(terms.batch.loader.seed, terms.batch.loader.device)

    def run(trial: Trial, seed: int) -> Gap:
        randomness.seed_for("trial", seed)
        return trial(seed)

    for trial in trials:
        try:
            gap = run(trial, 0)
            if not gap.is_wide:
                continue
            if run(trial, 1) == gap:
                return gap
            sizes = [run(trial, seed).size for seed in range(_REPEATS)]
            if not all(map(math.isfinite, sizes)):
                return gap
            error = statistics.stdev(sizes) / math.sqrt(_REPEATS)
            if abs(statistics.mean(sizes)) > max(8 * error, 1e-2):
                return gap
        except UnmeasurableError:
            continue
    return None


def _output_trials(terms: Terms) -> Iterator[Trial]:
    """Yield comparisons of outputs that can be split by sample."""
    outputs = terms.batch.head.outputs
    numbers = sum(tensor.numel() for tensor in flatten_tensors(outputs))
    for split in draw_splits(terms.batch.head.micro_batch.samples, numbers):

        def compare(_: int, split: Split = split) -> Gap:
            taken = split.take(outputs)
            rows, *parts = split.all_rows()
            terms_of_parts = [
                terms.compute(take_samples(taken, part), own)
                for part, own in zip(split.parts(), parts, strict=True)
            ]
            return Gap(terms.compute(taken, rows), tuple(terms_of_parts), split.seed is not None)

        yield compare


def _call_trials(terms: Terms, first: Split, outputs: Sequence[Any]) -> Iterator[Trial]:
    """Yield comparisons by calls of the model, then with other last weights.

    `outputs` are those of the batch, and of the parts of the first split, which is not varied.
    """
    batch = terms.batch

    def compare_first(times: int) -> Gap:
        found = outputs
        if times and batch.is_alone:  # ranks would wait for each other
            found = [batch.call(rows) for rows in first.all_rows()]
        return _compare_calls(terms, found, first)

    yield compare_first
    if not batch.is_alone:
        return
    try:
        with measuring():
            args, kwargs, _, _ = batch.part(range(2))
            last = find_last_weights(batch.model, args, kwargs)
            if not last:
                return
            varied = VariedModel(batch.model, last)
    except UnmeasurableError:
        return
    samples = batch.head.micro_batch.samples
    for split in draw_splits(samples, samples, most=_CALLED):
        if split.seed is not None and split.seed < TRIALS // 2:

            def compare(_: int, split: Split = split, seed: int = split.seed) -> Gap:
                with measuring():
                    varied.vary(seed)
                found = [batch.call(rows, varied) for rows in split.all_rows()]
                return _compare_calls(terms, found, split)

            yield compare


def _compare_calls(terms: Terms, outputs: Sequence[Any], split: Split) -> Gap:
    least = TOLERANCE_OF_HALF if has_half(outputs[0]) else _TOLERANCE_OF_CALLS
    if terms.loss.kind == "in training":
        least = max(least, _TOLERANCE_OF_DRAWS)
    whole, *parts = (
        terms.compute(map_tensors(output, Tensor.clone), rows, least_tolerance=least)
        for output, rows in zip(outputs, split.all_rows(), strict=True)
    )
    return Gap(whole, tuple(parts), split.seed is not None)


def _explain(loss: Loss, gap: Gap, name: str, how: str) -> str:
    """Return the error for a loss that does not add up, with what to type instead."""

    def setting(option: str, value: str) -> str:
        return f"Task({option}={{{name!r}: {value}}})" if name else f"Task({option}={value})"

    whole = gap.whole
    divisor = whole.items if loss.divides else 1.0
    together = sum(part.total for part in gap.parts) / divisor
    declared = "a mean over its items" if loss.divides else "a sum"
    called = "loss that the model computes" if loss.kind in ("model", "in training") else "loss"
    gives = (
        f"The {called} is not {declared}: for {whole.samples} samples it is "
        f"{whole.total / divisor:.6g}, but {together:.6g} if it is computed from "
        f"{len(gap.parts)} parts of them{how}. "
    )
    if _adds_up(gap, lambda term: 1.0):
        return gives + (
            "It is a sum over samples. Divide it by the number of samples, or keep the sum: "
            f"{setting('reduction', repr('sum'))}."
        )
    if _adds_up(gap, lambda term: term.samples):
        option = "items" if loss.divides else "reduction"
        return f"{gives}It is a mean over samples, the default: leave {option} out."
    if whole.tokens is not None and _adds_up(gap, lambda term: term.tokens or 0):
        items = setting("items", repr("tokens"))
        return f"{gives}It is a mean over the targets that are not -100: {items}."
    items = setting("items", "a function of the batch that counts them")
    return gives + (
        f"Declare what it is a mean over, {items}, or Task(loss_is_separable=False) if it "
        "compares samples with each other."
    )


def _adds_up(gap: Gap, weight: Callable[[Term], float]) -> bool:
    """Return whether the values, each times its weight, add up."""
    terms = (gap.whole, *gap.parts)
    totals = [term.value * weight(term) for term in terms if weight(term)]  # 0 items may give NaN
    return abs(2 * totals[0] - sum(totals)) <= gap.tolerance * sum(map(abs, totals))
