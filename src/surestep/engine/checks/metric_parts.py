"""Whether a metric is a mean over samples: a batch must give the same as its parts together.

An evaluation averages over batches. AUC, F1 and correlations are not means; averaged over batches
they depend on the batch size.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch, flatten_tensors, map_tensors
from surestep.engine.checks.additivity import TOLERANCE_OF_HALF, has_half
from surestep.engine.checks.samples import (
    Partition,
    can_be_split,
    can_be_varied,
    draw_classes,
    is_list_of_samples,
    is_per_sample,
    predicted_classes,
    select_samples,
    split_in_two,
)
from surestep.engine.evaluate.evaluate import metric_weight
from surestep.engine.losses.adapt import Loss
from surestep.engine.metrics.base import (
    InputMetric,
    MeanMetric,
    ObjectMetric,
    has_torchmetrics,
    init_metrics,
)
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.value import number

_TOLERANCE = 1e-4
_SAMPLES = (8, 64)  # that are varied: few may have the same metric by chance, many an average
_OTHER_CLASSES = " (with other outputs and classes)"
Measured = dict[str, tuple[float, float]]  # by name, a value and the size of what it is made of


class _RandomError(Exception):
    """The metric draws random numbers."""


class _MetricError(Exception):
    """The metric fails on samples: it is not defined for them."""


def check_mean(name: str, metric: Any, outputs: Any, micro_batch: MicroBatch, loss: Loss) -> None:
    """Check that a metric of the first batch does not depend on how it is split into batches.

    Metrics of torchmetrics, and those of inputs, are exact as they are. The loss counts what the
    mean is over.
    """
    is_exact = has_torchmetrics(metric) if hasattr(metric, "compute") else False
    if not (is_exact or isinstance(metric, InputMetric)):
        _check_parts(name, metric, outputs, micro_batch, loss)


def _check_parts(name: str, metric: Any, outputs: Any, micro: MicroBatch, loss: Loss) -> None:
    what, why = f"metrics[{name!r}]", "it draws random numbers"
    if micro.samples < 2:
        return not_checked(what, "the first batch has one sample")
    is_split, has_tensors = is_per_sample(outputs, micro.samples), bool(flatten_tensors(outputs))
    if not (is_split or (has_tensors and is_list_of_samples(outputs, micro.samples))):
        return not_checked(what, "the outputs of the model have no row for each sample")
    if not can_be_split(micro.targets, micro.samples):
        return not_checked(what, "the targets have no row for each sample")
    with warnings.catch_warnings(), suppress(_RandomError):
        warnings.simplefilter("ignore")  # of a metric that is not defined for few samples
        most_of = _SAMPLES if is_split else ()  # those of an image, as boxes, may depend on it
        varied = (_trials_varied(outputs, micro, loss, most) for most in most_of)
        found: list[float] = []
        for trial in _trials_predicted(outputs, micro):
            found += _compare(name, metric, outputs, trial, loss)
        # Of each, the first that shows something: it need not be defined for varied outputs.
        for trials in (_trials_given(micro), *varied):
            found += next(
                filter(None, (_compare(name, metric, outputs, t, loss) for t in trials)), []
            )
        why = "" if found else "it is not finite for samples of the first batch"
        if found and len({*found}) == 1:
            why = f"it is {found[0]:.6g} for all samples and outputs that were tried"
    if why:
        not_checked(what, why)
    return None


class _Trial(NamedTuple):
    """A comparison of samples with parts of them.

    Attributes:
        micro_batch: what has the targets.
        split: the samples and the parts.
        how: what is varied.
    """

    micro_batch: MicroBatch
    split: Partition
    how: str


def _trials_given(given: MicroBatch) -> list[_Trial]:
    return [_Trial(given, split_in_two(given.samples), "")]


def _trials_predicted(outputs: Any, given: MicroBatch) -> Iterator[_Trial]:
    """Yield trials whose first part is predicted, and no sample of the other."""
    split = split_in_two(given.samples)
    for targets in predicted_classes(given.targets, outputs, split.bounds[0]):
        yield _Trial(given._replace(targets=targets), split, _OTHER_CLASSES)


def _trials_varied(outputs: Any, given: MicroBatch, loss: Loss, most: int) -> Iterator[_Trial]:
    """Yield trials of at most so many samples with other outputs, with other classes first."""
    if not can_be_varied(outputs, given.samples):
        return
    other = given._replace(targets=draw_classes(given.targets, outputs, loss))
    for micro, how in ((other, _OTHER_CLASSES), (given, " (with outputs varied at random)")):
        if micro.targets is not None:
            split = split_in_two(min(given.samples, most))
            yield _Trial(micro, split._replace(seed=most), how)


def _compare(name: str, metric: Any, outputs: Any, trial: _Trial, loss: Loss) -> list[float]:
    """Compare the metric of samples with that of parts; return its values that are finite.

    Raises:
        TaskError: they differ.
        _RandomError: the metric draws random numbers.
    """
    micro, split, how = trial
    tolerance = TOLERANCE_OF_HALF if has_half(outputs) else _TOLERANCE
    taken = select_samples(outputs, split.rows, micro.samples)
    if split.seed is not None:
        taken = _with_both_signs(outputs, split.take(outputs))
    unsplit = Partition(split.rows, [], split.seed)

    def measure(split: Partition, parts: Sequence[Any]) -> Measured:
        return _measure({name: metric}, split, parts, micro, loss)

    def reject(error: TaskError) -> NoReturn:
        if repr(whole) != repr(measure(unsplit, [taken])):  # of which NaN equals NaN
            raise _RandomError
        raise error

    try:
        whole = measure(unsplit, [taken])
    except _MetricError:
        return []  # it need not be defined for varied outputs
    try:
        parts = measure(
            split, [select_samples(taken, part, len(split.rows)) for part in split.parts()]
        )
    except _MetricError as error:
        if how == _OTHER_CLASSES or min(map(len, split.parts())) == 1:
            return []  # a function may be written for its classes, and for two samples and more
        reject(_not_a_mean(name, metric, f"fails on a part of them: {error}"))
    for key, (value, size) in whole.items():
        found, scale = parts.get(key, (math.nan, 0.0))
        if math.isfinite(value) and not abs(found - value) <= tolerance * (scale + size):
            text = f"for {len(split.rows)} samples it is {value:.6g}, but {found:.6g} if it is "
            reject(_not_a_mean(name, metric, f"{text}computed from parts of them{how}"))
    return [value for value, _ in whole.values() if math.isfinite(value)]


def _with_both_signs(outputs: Any, varied: Any) -> Any:
    """Center varied outputs if the outputs are all zero, as those of a new model may be.

    Zeros are varied to values above 0 only, since a loss may be defined for probabilities alone. A
    metric that fails on other values proves nothing.
    """
    zero = iter([not bool(tensor.any()) for tensor in flatten_tensors(outputs)])

    def center(tensor: Tensor) -> Tensor:
        return tensor - tensor.mean() if next(zero) and tensor.is_floating_point() else tensor

    return map_tensors(varied, center)


def _measure(
    named: Mapping[str, Any], split: Partition, parts: Sequence[Any], micro: MicroBatch, loss: Loss
) -> Measured:
    """Return the values over the parts of a split, whose outputs are given.

    Raises:
        _MetricError: the metric fails on one of them.
    """
    (opened,) = init_metrics(named, flatten_tensors(parts)[0].device)
    assert isinstance(opened, (MeanMetric, ObjectMetric))
    size = 0.0
    try:
        for rows, outputs in zip(split.all_rows()[1:], parts, strict=True):
            targets = select_samples(micro.targets, rows, micro.samples)
            own = micro._replace(targets=targets, samples=len(rows), collated=None)
            before = float(opened.total) if isinstance(opened, MeanMetric) else 0.0
            opened.update(outputs, targets, metric_weight(loss, own), range(len(rows)))
            if isinstance(opened, MeanMetric):
                size += abs(float(opened.total) - before)
        if isinstance(opened, ObjectMetric):
            values = {key: number(value) for key, value in opened.compute().items()}
            return {key: (value, abs(value) + 1e-6) for key, value in values.items()}
    except Exception as error:  # whatever the user's function or object raises
        raise _MetricError(f"{type(error).__name__}: {error}") from error
    count = float(opened.count)
    return {"": (float(opened.total) / count, size / count)} if count else {}


def _not_a_mean(name: str, metric: Any, what: str) -> TaskError:
    if hasattr(metric, "compute"):
        return TaskError(
            f"metrics[{name!r}] depends on the size of the batches: {what}. Have its update keep "
            "what compute needs, or pass surestep.whole_set(fn) of a function of all (outputs, "
            "targets)."
        )
    called = getattr(metric, "__name__", "fn")
    called = "fn" if called == "<lambda>" else called
    return TaskError(
        f"metrics[{name!r}] is not a mean over samples: {what}. Write metrics={{{name!r}: "
        f"surestep.whole_set({called})}} to compute it over all predictions of a set, or return "
        "(sum, count)."
    )
