"""Whether a metric is a mean over samples: a batch must give the same as its parts put together.

An evaluation puts batches together. AUC, F1 and correlations are no means, and averaged over
batches they depend on the batch size.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch, flatten_tensors, map_tensors
from surestep.engine.checks.samples import Layout, first_axis, select_samples, take_samples
from surestep.engine.checks.splits import Split, draw_splits, take_split
from surestep.engine.checks.terms import TOLERANCE_OF_HALF
from surestep.engine.evaluate.evaluate import metric_weight
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import HALF
from surestep.engine.metrics.base import InputMetric, MeanMetric, ObjectMetric, init_metrics
from surestep.engine.metrics.distributed import has_torchmetrics
from surestep.engine.value import Value, number

_TOLERANCE = 1e-4
Measured = dict[str, tuple[float, float]]  # by name, a value and the size of what it is made of


class _Failure(Exception):
    """The metric fails on samples: it is not defined for them."""


def check_mean(name: str, metric: Any, outputs: Any, micro: MicroBatch, loss: Loss) -> None:
    """Compare a metric of the first batch with that of its parts.

    Args:
        name: of the metric.
        metric: as it was given; what keeps a whole set, and torchmetrics, are exact as they are.
        outputs: what the metric is given.
        micro: the batch, on the device.
        loss: counts what the mean is over.

    Raises:
        TaskError: the metric depends on how samples are put into batches.
    """
    layout = first_axis(outputs, micro.samples)
    if not _needs_check(metric) or layout is None or micro.samples < 2:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a metric that is not defined for few samples
        _check(_Measure(name, metric, micro, loss), outputs, layout)


def _check(measure: "_Measure", outputs: Any, layout: Layout) -> None:
    name, metric, micro = measure.name, measure.metric, measure.micro
    numbers = sum(each.numel() for each in flatten_tensors(outputs))
    half = any(each.dtype in HALF for each in flatten_tensors(outputs))
    tolerance = TOLERANCE_OF_HALF if half else _TOLERANCE
    for split in draw_splits(micro.samples, numbers):
        taken = _with_signs(outputs, take_split(outputs, layout, split))
        pieces = [take_samples(taken, layout, part) for part in split.parts()]
        whole_of = Split(split.rows, [], split.seed)
        try:
            whole = measure.of(whole_of, [taken])
            again = measure.of(whole_of, [taken])
            if repr(whole) != repr(again):  # of which NaN equals NaN
                return  # it draws random numbers
        except _Failure:
            continue  # varied outputs need not be what it is defined for
        try:
            parts = measure.of(split, pieces)
        except _Failure as failure:
            if min(map(len, split.parts())) == 1:
                continue  # a function may be written for two samples and more
            raise _not_a_mean(name, metric, f"fails on a part of them: {failure}") from failure
        for key, (value, size) in whole.items():
            other, scale = parts.get(key, (math.nan, 0.0))
            if math.isfinite(value) and not abs(other - value) <= tolerance * (scale + size):
                varied = "" if split.seed is None else " (outputs varied at random)"
                text = f"{len(split.rows)} samples give {value:.6g}, and their parts put together "
                raise _not_a_mean(name, metric, f"{text}{other:.6g}{varied}")


def _with_signs(outputs: Any, varied: Any) -> Any:
    """Return varied outputs of both signs where the outputs are all zero, as a new model's may be.

    A loss may be defined for probabilities alone, so they are varied to values above 0 only. Of a
    metric that fails on others nothing is concluded.
    """
    zero = iter([not bool(each.any()) for each in flatten_tensors(outputs)])

    def center(tensor: Tensor) -> Tensor:
        return tensor - tensor.mean() if next(zero) and tensor.is_floating_point() else tensor

    return map_tensors(varied, center)


def _needs_check(metric: Any) -> bool:
    if hasattr(metric, "compute"):
        return not has_torchmetrics(metric)
    return not isinstance(metric, InputMetric)


class _Measure:
    """Measures samples of the first batch, in one piece or in several."""

    def __init__(self, name: str, metric: Any, micro: MicroBatch, loss: Loss) -> None:
        self.name = name
        self.metric = metric
        self.micro = micro
        self.loss = loss

    def of(self, split: Split, pieces: Sequence[Any]) -> Measured:
        """Return the values over the parts of a split, whose outputs are `pieces`.

        Raises:
            _Failure: the metric fails on one of them.
        """
        device = next(iter(flatten_tensors(pieces))).device
        (opened,) = init_metrics({self.name: self.metric}, device)
        assert isinstance(opened, (MeanMetric, ObjectMetric))
        size = 0.0
        for part, outputs in zip(split.parts(), pieces, strict=True):
            rows = split.rows[part.start : part.stop]
            targets = select_samples(self.micro.targets, rows, self.micro.samples)
            micro = self.micro._replace(targets=targets, samples=len(rows))
            before = float(opened.total) if isinstance(opened, MeanMetric) else 0.0
            try:
                opened.update(outputs, targets, metric_weight(self.loss, micro), rows)
            except Exception as error:  # whatever the user's function raises
                raise _Failure(f"{type(error).__name__}: {error}") from error
            if isinstance(opened, MeanMetric):
                size += abs(float(opened.total) - before)
        if isinstance(opened, MeanMetric):
            count = float(opened.count)
            return {"": (float(opened.total) / count, size / count)} if count else {}
        return self._of_object(opened)

    def _of_object(self, opened: ObjectMetric) -> Measured:
        try:
            values: Mapping[str, Value] = opened.compute()
        except Exception as error:  # whatever the user's object raises
            raise _Failure(f"{type(error).__name__}: {error}") from error
        return {key: (number(value), abs(number(value)) + 1e-6) for key, value in values.items()}


def _not_a_mean(name: str, metric: Any, what: str) -> TaskError:
    if hasattr(metric, "compute"):
        return TaskError(
            f"metrics[{name!r}] depends on the size of the batches: {what}. Let its update keep "
            "what compute needs, or give surestep.whole_set(fn) of a function of all (outputs, "
            "targets)."
        )
    called = getattr(metric, "__name__", "fn")
    called = "fn" if called == "<lambda>" else called
    return TaskError(
        f"metrics[{name!r}] is not a mean over samples: {what}. Write metrics={{{name!r}: "
        f"surestep.whole_set({called})}} to compute it over all predictions of a set, or return "
        "(sum, count)."
    )
