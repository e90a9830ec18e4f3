"""Whether a loss adds up: a batch must give the same as any parts of it put together.

That is what makes an update independent of the micro-batch size, and an evaluation independent of
its batch size. A loss that is a sum, or a mean over something else than its items, does not add up.

Parts are uneven, because a mean of means is right for even ones, and go down to single samples.
Outputs are varied at random besides, because a new model gives almost the same loss for everything.
Where outputs cannot be split by sample, the model is called on the parts of the batch, with other
weights in its last layers besides.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import flatten_tensors, map_tensors
from surestep.engine.checks.declaration import explain
from surestep.engine.checks.perturb import perturb
from surestep.engine.checks.samples import (
    Layout,
    compare_layout,
    first_axis,
    has_opaque,
    put_samples,
    take_samples,
)
from surestep.engine.checks.splits import TRIALS, Split, draw_splits, take_split
from surestep.engine.checks.terms import (
    TOLERANCE_OF_HALF,
    FirstBatch,
    Term,
    Terms,
    UnmeasurableError,
    measuring,
)
from surestep.engine.checks.varied_weights import VariedModel, find_last_weights
from surestep.engine.losses.base import HALF
from surestep.engine.losses.multi import get_named
from surestep.engine.rng import ModelRNG

_REPEATS = 16  # of a comparison that draws random numbers
_TOLERANCE_OF_DRAWS = 1e-2  # models with losses in training draw what those are means over
_CALLED = 5  # the most samples of a comparison for which the model is called again
_TOLERANCE_OF_CALLS = 1e-4  # kernels add up in another order for another number of samples


class Gap(NamedTuple):
    """The loss of some samples beside that of disjoint parts of them."""

    whole: Term
    parts: tuple[Term, ...]
    varied: bool

    @property
    def size(self) -> float:
        """The difference of the sums over items, relative to the size of their terms."""
        totals = [each.total for each in self.parts]
        scale = abs(self.whole.total) + sum(map(abs, totals))
        return (sum(totals) - self.whole.total) / scale if scale else 0.0

    @property
    def is_wide(self) -> bool:
        """Whether rounding cannot explain the difference."""
        if not math.isfinite(self.whole.total):
            return False  # the loss is not defined for these outputs
        tolerance = max(each.tolerance for each in (self.whole, *self.parts))
        return not abs(self.size) <= tolerance  # NaN in a part is a difference


Trial = Callable[[int], Gap]  # takes the number of times that it was run before


def check_additivity(batch: FirstBatch, *, calls_model: bool) -> None:
    """Compare the loss of the first batch with the loss of its parts.

    Args:
        batch: of two samples or more; a single one shows nothing.
        calls_model: the model may be called again, and each rank then calls it as often.

    Raises:
        TaskError: the loss does not add up over its items.
    """
    head, samples = batch.head, batch.head.micro.samples
    if samples < 2:
        return
    terms = Terms(batch)
    layout = None if head.loss.kind == "model" else first_axis(head.outputs, samples)
    gap = None
    if layout is not None:
        gap = _first_wide(terms, _split_trials(terms, layout))
        if gap is None:
            return
        calls_model = calls_model and batch.feed.layout.ranks == 1
    called = _CalledParts.of(terms) if calls_model else None
    if called is not None and called.layout != layout:  # else as many rows as samples, by chance
        gap = _first_wide(terms, called.trials())
    if gap is not None:
        raise TaskError(explain(terms.loss, gap.whole, gap.parts, head.name, varied=gap.varied))


def _first_wide(terms: Terms, trials: Iterable[Trial]) -> Gap | None:
    """Return the first gap that rounding cannot explain; what cannot be computed shows nothing."""
    randomness = ModelRNG(terms.batch.feed.seed, terms.batch.feed.device)

    def run(trial: Trial, seed: int) -> Gap:
        randomness.seed_micro_batch(-1, seed)
        return trial(seed)

    for trial in trials:
        try:
            gap = run(trial, 0)
            if gap.is_wide and (run(trial, 1) == gap or _differs_on_average(trial, run)):
                return gap
        except UnmeasurableError:
            continue
    return None


def _differs_on_average(trial: Trial, run: Callable[[Trial, int], Gap]) -> bool:
    """Tell a difference from the spread of a loss or a model that draws random numbers."""
    sizes = [run(trial, seed).size for seed in range(_REPEATS)]
    error = statistics.stdev(sizes) / math.sqrt(_REPEATS)
    return abs(statistics.mean(sizes)) > max(8 * error, 1e-2)


@dataclass(frozen=True)
class _SplitTrial:
    """Some samples against parts of them, by outputs that are split.

    Attributes:
        terms: computes the loss.
        layout: of the outputs.
        split: the samples and their parts.
    """

    terms: Terms
    layout: Layout
    split: Split

    def __call__(self, _: int) -> Gap:
        rows, outputs = self.split.rows, self.terms.batch.head.outputs
        outputs = take_split(outputs, self.layout, self.split)
        parts = []
        for part in self.split.parts():
            taken = take_samples(outputs, self.layout, part)
            parts.append(self.terms.of(taken, rows[part.start : part.stop]))
        return Gap(self.terms.of(outputs, rows), tuple(parts), self.split.seed is not None)


def _split_trials(terms: Terms, layout: Layout) -> Iterator[Trial]:
    """Yield comparisons of outputs that can be split by sample."""
    numbers = sum(each.numel() for each in flatten_tensors(terms.batch.head.outputs))
    for split in draw_splits(terms.batch.head.micro.samples, numbers):
        yield _SplitTrial(terms, layout, split)


@dataclass(frozen=True)
class _CalledParts:
    """What the model returns for the batch and for two parts of it.

    Attributes:
        terms: computes the loss.
        rows: of the batch, and of its parts.
        outputs: of the batch, and of its parts.
        layout: of the outputs, as their shapes show it.
    """

    terms: Terms
    rows: tuple[range, ...]
    outputs: tuple[Any, ...]
    layout: Layout

    @classmethod
    def of(cls, terms: Terms) -> "_CalledParts | None":
        """Call the model on both parts; return None where it does not take them."""
        samples = terms.batch.head.micro.samples
        third = max(1, samples // 3)
        rows = (range(samples), range(third), range(third, samples))
        try:
            parts = [_call(terms.batch, each) for each in rows[1:]]
        except UnmeasurableError:
            return None
        whole = terms.batch.head.outputs
        layout = compare_layout(whole, parts[0], samples, third)
        return cls(terms, rows, (whole, *parts), layout)

    def trials(self) -> Iterator[Trial]:
        """Yield comparisons of outputs, whether they can be split by sample or not."""
        is_own = self.terms.loss.kind == "model"
        if not is_own and None not in self.layout and not has_opaque(self.outputs[0]):
            yield from _split_trials(self.terms, self.layout)
            return
        yield partial(self._compare, None)
        if not is_own and any(self.layout):
            yield from (partial(self._compare, seed) for seed in range(TRIALS // 2))
        elif self.terms.batch.feed.layout.ranks == 1:  # else ranks would wait for each other
            yield from _weight_trials(self.terms)

    def _compare(self, varied: int | None, times: int) -> Gap:
        """Compare the batch with its parts; only outputs that are split by sample are varied."""
        whole, *parts = self.outputs
        if (
            times and self.terms.batch.feed.layout.ranks == 1
        ):  # else ranks would wait for each other
            whole, *parts = (_call(self.terms.batch, rows) for rows in self.rows)
        if varied is not None:
            whole = perturb(whole, self.layout, torch.Generator().manual_seed(varied))
            put = zip(parts, self.rows[1:], strict=True)
            parts = [put_samples(part, whole, self.layout, rows) for part, rows in put]
        return _compare_calls(self.terms, (whole, *parts), self.rows, varied=varied is not None)


def _compare_calls(
    terms: Terms, outputs: Sequence[Any], rows: Sequence[range], *, varied: bool
) -> Gap:
    """Compare some samples with parts of them, by what the model returns for each."""
    half = any(each.dtype in HALF for each in flatten_tensors(outputs[0]))
    least = TOLERANCE_OF_HALF if half else _TOLERANCE_OF_CALLS
    if terms.loss.kind == "in training":
        least = max(least, _TOLERANCE_OF_DRAWS)
    first, *others = (
        terms.of(map_tensors(each, Tensor.clone), own, least_tolerance=least)
        for each, own in zip(outputs, rows, strict=True)
    )
    return Gap(first, tuple(others), varied)


@dataclass(frozen=True)
class _WeightTrial:
    """Some samples against parts of them, by a model with other last weights.

    Attributes:
        terms: computes the loss.
        varied: that model.
        split: the samples and their parts.
    """

    terms: Terms
    varied: VariedModel
    split: Split

    def __call__(self, _: int) -> Gap:
        assert self.split.seed is not None
        batch, taken = self.terms.batch, self.split.rows
        with measuring():
            self.varied.vary(self.split.seed)
        rows = [taken, *(taken[part.start : part.stop] for part in self.split.parts())]
        outputs = [_call(batch, each, self.varied) for each in rows]
        return _compare_calls(self.terms, outputs, rows, varied=True)


def _weight_trials(terms: Terms) -> Iterator[Trial]:
    """Yield comparisons of a few samples, since the model is called for each part."""
    batch = terms.batch
    samples = batch.head.micro.samples
    try:
        with measuring():
            args, kwargs, _, _ = batch.part(range(2))
            last = find_last_weights(batch.model, args, kwargs)
            if not last:
                return
            varied = VariedModel(batch.model, last)
    except UnmeasurableError:  # the model takes no part of the batch, or memory ran out
        return
    for split in draw_splits(samples, samples, most=_CALLED):
        if split.seed is not None and split.seed < TRIALS // 2:
            yield _WeightTrial(terms, varied, split)


def _call(batch: FirstBatch, rows: range, varied: VariedModel | None = None) -> Any:
    """Return what the model returns for some samples.

    Raises:
        UnmeasurableError: it does not take them.
    """
    name = batch.head.name
    with measuring():
        args, kwargs, _, _ = batch.part(rows)
        outputs = (varied or batch.model)(*args, **kwargs)
        return get_named(outputs, name, "outputs") if name else outputs
