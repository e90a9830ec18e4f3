"""Whether a loss adds up: a batch must give the same as any parts of it together.

That makes an update independent of the micro-batch size, and an evaluation independent of its batch
size. A loss that is a sum, or a mean over something other than its items, does not add up.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import flatten_tensors, map_tensors
from surestep.engine.checks.measured_batch import MeasuredBatch, UnmeasurableError, measuring
from surestep.engine.checks.padding import (
    CANNOT_COLLATE,
    describe_count,
    find_paddings,
    report_padding,
)
from surestep.engine.checks.samples import (
    Partition,
    can_be_varied,
    different_samples,
    draw_classes,
    is_per_sample,
    select_samples,
    split_in_two,
    split_varied,
    take_rows,
    take_samples,
)
from surestep.engine.device import sum_dtype
from surestep.engine.losses.adapt import IGNORED
from surestep.engine.losses.base import HALF
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.rng import ModelRNG

TOLERANCE_OF_HALF = 3e-2
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}
_TOLERANCE_OF_CALLS = 1e-4  # kernels sum in another order for another number of samples
_TOLERANCE_OF_DRAWS = 1e-2  # models with losses in training draw what those are means over
_SAME = 1e-6  # relative: a loss that was summed over its items, and divided again
# The samples of each part with other outputs: uneven, as a mean of means is right for even ones.
_PARTS = (1, 1, 6)
_PARTS_IN_BRIEF = (1, 7)  # if there are other calls, of a batch that is transformed or padded
_PARTS_OF_CALLS = (1, 2)  # if the model is called
_MOST_CALLS = 8  # of a loss in all checks of the first batch
_FAILS = "it cannot be computed for a part of the first batch"
_ZERO, _NOT_FINITE = "it is 0 for the first batch", "it is not finite for the first batch"
_DRAWS = "it draws random numbers, which may hide a difference"
_TOO_MANY = f"all comparisons would be more than {_MOST_CALLS} calls of the loss"


class Term(NamedTuple):
    """The loss of some samples.

    Attributes:
        value: what the loss returned; 0 if it is not defined because nothing is counted.
        items: its denominator, as the Task declares it.
        total: the loss summed over its items, as the declaration has it.
        samples: how many samples there are.
        counts: targets that are not each of the values that may mean padding, if they are integers.
        tolerance: the relative error that rounding explains.
    """

    value: float
    items: float
    total: float
    samples: int
    counts: tuple[int, ...]
    tolerance: float


class Terms:
    """Computes the loss of some samples, in double precision if the loss takes it."""

    def __init__(self, batch: MeasuredBatch, targets: Tensor | None = None) -> None:
        self.batch = batch
        self.targets = targets  # in place of those of the batch
        self.why = _FAILS  # of the last comparison that shows nothing
        self.loss = batch.head.loss
        self.paddings = find_paddings(batch.head.micro_batch.targets)
        self._double = None if self.loss.kind == "model" else sum_dtype(batch.loader.device)
        self._teacher_outputs = None
        if self.loss.teacher is not None:
            self._teacher_outputs = self.loss.targets_of(batch.head.micro_batch)[1]

    def compute(
        self,
        outputs: Any,
        rows: Sequence[int],
        *,
        least_tolerance: float = 0.0,
        known: Tensor | None = None,
    ) -> Term:
        """Return the loss of some samples, whose outputs have a relative error.

        The outputs are of these samples alone; the loss may write into them. If their `known` loss,
        summed over items, has the precision of the others, it is not computed again.

        Raises:
            UnmeasurableError: the loss fails.
        """
        with measuring():
            _, _, targets, items = self.batch.part(rows)
            if self.targets is not None:
                targets = take_rows(self.targets, rows)
                items = self.loss.count_items(None, targets, len(rows))
            counts = tuple(int((targets != value).sum()) for value in self.paddings)
            if self._teacher_outputs is not None:
                samples = self.batch.head.micro_batch.samples
                targets = targets, select_samples(self._teacher_outputs, rows, samples)
            try:
                if known is None or self._widest is not None:
                    value = self._value(rows, outputs, targets)
                else:
                    value = known if self.loss.is_sum else known / items
            except Exception:
                if items:
                    raise
                value = torch.zeros(())
            number = float(value)
        if not items:  # it shows only what else the loss may be a mean over
            return Term(number if math.isfinite(number) else 0.0, 0.0, 0.0, len(rows), counts, 0.0)
        half = self._widest is None and has_half(outputs)
        rounding = TOLERANCE_OF_HALF if half else _TOLERANCES.get(value.dtype, TOLERANCE_OF_HALF)
        total = number if self.loss.is_sum else number * items
        return Term(number, items, total, len(rows), counts, max(rounding, least_tolerance))

    @property
    def _widest(self) -> torch.dtype | None:
        """The precision to compute in; None for that of the outputs."""
        return self._double if self.batch.calls.take_double else None

    def _value(self, rows: Sequence[int], outputs: Any, targets: Any) -> Tensor:
        if (widest := self._widest) is not None:

            def widen(tensor: Tensor) -> Tensor:
                return tensor.to(widest) if tensor.is_floating_point() else tensor

            try:
                with measuring():
                    return self._sum_parts(rows, *map_tensors((outputs, targets), widen))
            except UnmeasurableError as error:
                if isinstance(error.__cause__, LookupError):  # of a class that the batch has not
                    raise
        value = self._sum_parts(rows, outputs, targets)
        if widest is not None:  # class weights in fp32 reject double precision, for instance
            self.batch.calls.take_double = False
        return value

    def _sum_parts(self, rows: Sequence[int], outputs: Any, targets: Any) -> Tensor:
        value = self.batch.run("loss", rows, self.loss.value, outputs, targets)
        return value if isinstance(value, Tensor) else self.loss.to_sum(value, 1.0)[0]


def has_half(outputs: Any) -> bool:
    """Return whether some of the nested outputs are in half precision."""
    return any(tensor.dtype in HALF for tensor in flatten_tensors(outputs))


class Gap(NamedTuple):
    """The loss of some samples beside that of disjoint parts of them."""

    whole: Term
    parts: tuple[Term, ...]
    how: str  # what was varied

    @property
    def size(self) -> float:
        """The difference of the sums over items, relative to the size of their terms."""
        totals = [part.total for part in self.parts]
        scale = abs(self.whole.total) + sum(map(abs, totals))
        return (sum(totals) - self.whole.total) / scale if scale else 0.0

    @property
    def shows_something(self) -> bool:
        """Whether the loss is defined for these outputs, and not zero for all."""
        terms = (self.whole, *self.parts)
        return math.isfinite(self.whole.total) and any(term.total != 0 for term in terms)

    @property
    def is_wide(self) -> bool:
        """Whether rounding cannot explain the difference."""
        return not abs(self.size) <= self.tolerance  # NaN in a part is a difference

    @property
    def tolerance(self) -> float:
        """The relative error that rounding explains."""
        return max(entry.tolerance for entry in (self.whole, *self.parts))


class Trial(NamedTuple):
    """A comparison.

    Attributes:
        batch: whose samples are compared.
        calls: of the loss, that `run` makes.
        run: measures the loss of some samples and of their parts.
        again: measures that of the samples again.
    """

    batch: MeasuredBatch
    calls: int
    run: Callable[[], Gap]
    again: Callable[[], Term]


def check_additivity(batch: MeasuredBatch, *, calls_model: bool) -> None:
    """Compare the loss of the first batch with the loss of its parts.

    Outputs are split by sample if they can be; else the model is called on the parts, if
    `calls_model` allows that: each rank then calls it as often. Two comparisons, with other outputs
    and with those of the model, call the loss three times each.

    Raises:
        TaskError: the loss does not add up over its items.
    """
    head = batch.head
    is_split = head.loss.kind != "model" and is_per_sample(head.outputs, batch.samples)
    if batch.samples < 2:
        return not_checked(batch.what, "the first batch has one sample, which has no parts")
    if not (is_split or calls_model):
        return not_checked(batch.what, "only calls of the model on each rank could split the batch")
    if batch.loader.source.collates and not batch.can_collate:
        not_checked(f"the padding of {batch.what}", CANNOT_COLLATE)
    why = _find_silence(batch, is_split=is_split, calls_model=calls_model and batch.is_alone)
    if why:
        not_checked(batch.what, why)
    return None


def _find_silence(batch: MeasuredBatch, *, is_split: bool, calls_model: bool) -> str:
    """Return why the parts of a batch do not show that the loss adds up; "" if they do.

    Raises:
        TaskError: they show that it does not.
    """
    pads, padded = batch.can_collate and batch.has_rows, replace(batch, collates=True)
    terms = Terms(batch if pads or not batch.can_collate else padded)
    make_given = partial(_split_given if is_split else _call_given, terms)
    varied = _vary_outputs(terms) if is_split else _call_varied(terms)
    needed = 2 if terms.loss.kind == "in training" else 1  # its tolerance is large
    gap, shown = _find_gap(terms, varied, needed)
    if gap is None and shown == 2:
        return ""
    if gap is None and pads:
        gap, of_padded = _find_gap(terms, [_call_given(Terms(padded))])
        if gap is not None and _find_gap(terms, [make_given()])[0] is None:
            report_padding(padded, gap.whole, gap.parts)
            return ""
        if gap is None and of_padded:
            return ""
        if gap is None:
            not_checked(f"the padding of {batch.what}", terms.why)
            terms.why = ""
    if gap is not None:
        terms.batch.calls.are_limited = False  # a difference is measured as often as it needs
    if gap is None or gap.how:  # its message is about the batch as it is, if that shows it
        of_given, is_shown = _find_gap(terms, [make_given()])
        gap, shown = of_given or gap, shown + is_shown
    if gap is not None and is_split and calls_model and _has_rows_by_chance(terms.batch):
        gap, shown = _find_gap(terms, [*_call_varied(terms), _call_given(terms)])
    if gap is not None:
        raise TaskError(_explain(terms, gap))
    return "" if shown and terms.why not in (_TOO_MANY, _DRAWS) else terms.why


def _has_rows_by_chance(batch: MeasuredBatch) -> bool:
    """Return whether outputs have as many rows as there are samples, but not those of samples."""
    parts = split_in_two(batch.few).all_rows()[1:]
    try:
        outputs = list(map(batch.call, parts))
    except UnmeasurableError:  # the model takes no part of the batch
        return False
    return not all(map(is_per_sample, outputs, map(len, parts)))


def _find_gap(terms: Terms, trials: Iterable[Trial], needed: int = 1) -> tuple[Gap | None, int]:
    """Return the first gap of `needed` trials that show something, and how many did.

    What cannot be computed, or is zero or not finite, shows nothing. There is no gap if rounding
    or random numbers explain it.
    """
    randomness = ModelRNG(terms.batch.loader.seed, terms.batch.loader.device)
    calls, shown = terms.batch.calls, 0
    for trial in trials:
        if calls.are_limited and calls.made + trial.calls > _MOST_CALLS:
            terms.why = terms.why if terms.why is _DRAWS else _TOO_MANY
            continue
        try:
            randomness.seed_for("trial", 0)
            gap = trial.run()
            if not gap.shows_something:
                terms.why = _ZERO if math.isfinite(gap.whole.total) else _NOT_FINITE
                continue
            if gap.is_wide:
                randomness.seed_for("trial", 1)
                if trial.batch.drew_the_same and _is_same(gap.whole, trial.again()):
                    return gap, needed
                terms.why = _DRAWS
                continue
        except UnmeasurableError:
            terms.why = _FAILS
            continue
        shown += 1
        if shown == needed:
            break
    return None, shown


def _is_same(one: Term, other: Term) -> bool:
    return math.isclose(one.total, other.total, rel_tol=_SAME)


def _vary_outputs(terms: Terms) -> Iterator[Trial]:
    """Yield comparisons of other outputs that can be split by sample: with other classes too.

    A new model returns nearly the same for every sample, and a batch may have no sample of a rare
    class. A loss may fail for classes that the batch has not.
    """
    batch, head = terms.batch, terms.batch.head
    if not can_be_varied(head.outputs, batch.samples):
        return
    is_called_more = batch.loader.transform is not None or batch.can_collate
    parts = _PARTS_IN_BRIEF if is_called_more else _PARTS
    own, targets = split_to_vary(batch, parts), head.micro_batch.targets
    if not (batch.counts_batch or batch.collates):
        drawn = draw_classes(targets, head.outputs, head.loss)
        if drawn is not None:  # one sample keeps its own: drawn ones have equally many of a class
            first = torch.tensor(own.rows[:1], device=drawn.device)
            of_drawn = Terms(batch, drawn.index_copy(0, first, targets.index_select(0, first)))
            yield _trial_of_outputs(of_drawn, own, " (with other outputs and classes)")
            own = split_to_vary(batch, _PARTS_IN_BRIEF)
    yield _trial_of_outputs(terms, own, " (with other outputs)")


def split_to_vary(batch: MeasuredBatch, parts: Sequence[int] = _PARTS_OF_CALLS) -> Partition:
    """Return a few samples in parts: ones whose targets differ, or the first that are collated."""
    targets, rows = batch.head.micro_batch.targets, None
    if not batch.collates:
        rows = different_samples(targets, batch.samples, sum(parts))
    return split_varied(batch.samples, parts, rows)


def _split_given(terms: Terms) -> Trial:
    """Return the comparison of the outputs as they are."""
    batch = terms.batch
    total = None if batch.few < batch.samples or batch.calls.draws is not None else batch.total
    return _trial_of_outputs(terms, split_in_two(batch.few), "", total)


def _trial_of_outputs(
    terms: Terms, split: Partition, how: str, known: Tensor | None = None
) -> Trial:
    calls = len(split.all_rows()) - (known is not None and not terms.batch.calls.take_double)
    rows, *rows_of_parts = split.all_rows()

    def measure(known: Tensor | None = None) -> Term:
        return terms.compute(split.take(terms.batch.head.outputs), rows, known=known)

    def run() -> Gap:
        taken = split.take(terms.batch.head.outputs)
        parts = [
            terms.compute(take_samples(taken, part), own)
            for part, own in zip(split.parts(), rows_of_parts, strict=True)
        ]
        return Gap(measure(known), tuple(parts), how)

    return Trial(terms.batch, calls, run, measure)


def _call_varied(terms: Terms) -> Iterator[Trial]:
    """Yield the comparisons by calls of the model with other last weights, if it has some."""
    if terms.batch.varied is None:
        return
    splits = [split_to_vary(terms.batch)]
    if terms.loss.kind == "in training":
        rows = split_to_vary(terms.batch, (1, 1, 1, 1)).rows
        splits = [
            Partition(rows[first : first + 2], [1], seed)
            for seed, first in enumerate(range(0, len(rows) - 1, 2))
        ]
    for split in splits:
        yield _trial_of_calls(terms, split, " (with other last weights)")


def _call_given(terms: Terms) -> Trial:
    """Return the comparison by calls of the model as it is."""
    batch = terms.batch
    split = split_in_two(batch.few)
    is_whole = batch.few == batch.samples and batch.head.outputs is not None
    if is_whole and batch.calls.draws is None:
        batch.keep(split.rows, None, batch.head.outputs)
    trial = _trial_of_calls(terms, split, "")
    if batch.is_alone:
        return trial
    again: list[Term] = []  # measured in any case: ranks would wait for each other

    def run() -> Gap:
        gap = trial.run()
        again.append(trial.again())
        return gap

    return trial._replace(calls=trial.calls + 1, run=run, again=again.pop)


def _trial_of_calls(terms: Terms, split: Partition, how: str) -> Trial:
    """Return the comparison of samples by calls of the model."""

    def measure(rows: Sequence[int]) -> Term:
        outputs = terms.batch.call(rows, split.seed)
        least = TOLERANCE_OF_HALF if has_half(outputs) else _TOLERANCE_OF_CALLS
        if terms.loss.kind == "in training":
            least = max(least, _TOLERANCE_OF_DRAWS)
        return terms.compute(map_tensors(outputs, Tensor.clone), rows, least_tolerance=least)

    def run() -> Gap:
        whole, *parts = map(measure, split.all_rows())
        return Gap(whole, tuple(parts), how)

    calls = sum(not terms.batch.has_kept(rows, split.seed) for rows in split.all_rows())
    return Trial(terms.batch, calls, run, partial(measure, split.rows))


def _explain(terms: Terms, gap: Gap) -> str:
    """Return the error for a loss that does not add up, with what to type instead."""
    loss, name = terms.loss, terms.batch.head.name

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
        f"{len(gap.parts)} parts of them{gap.how}. "
    )
    if _adds_up(gap, lambda term: 1.0):
        return gives + (
            "It is a sum over samples. Divide it by the number of samples, or keep the sum: "
            f"{setting('reduction', repr('sum'))}."
        )
    if _adds_up(gap, lambda term: term.samples):
        option = "items" if loss.divides else "reduction"
        return f"{gives}It is a mean over samples, the default: leave {option} out."
    for place, value in enumerate(terms.paddings):
        if _adds_up(gap, _count_at(place)):
            mean = f"It is a mean over the targets that are not {value}"
            if value == IGNORED:
                return f"{gives}{mean}: {setting('items', repr('tokens'))}."
            return f"{gives}{mean}: {setting('items', describe_count(terms.batch, value))}."
    items = setting("items", "a function of the batch that counts them")
    return gives + (
        f"Declare what it is a mean over, {items}, or Task(loss_is_separable=False) if it "
        "compares samples with each other."
    )


def _count_at(place: int) -> Callable[[Term], float]:
    return lambda term: term.counts[place]


def _adds_up(gap: Gap, weight: Callable[[Term], float]) -> bool:
    """Return whether the values, each times its weight, add up."""
    terms = (gap.whole, *gap.parts)
    totals = [term.value * weight(term) for term in terms if weight(term)]  # 0 items may give NaN
    return abs(2 * totals[0] - sum(totals)) <= gap.tolerance * sum(map(abs, totals))
