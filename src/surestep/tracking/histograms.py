"""Histograms of weights and gradients by layer, computed at log points and written as events."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from surestep.config.duration import count_periods
from surestep.engine.device import sum_dtype
from surestep.engine.distributed.shards import full_tensor
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.layer_norms import layer_of
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.part import Part

BINS = 40
_AT_ONCE = 2**22  # values whose bins are computed together, to limit the memory


class RecordHistograms(Part):
    """Records histograms at the first log point after each interval.

    The gradients are those of the last step, after clipping. All ranks call it: if parameters are
    sharded, they are gathered one after another.

    Args:
        period: the interval, in steps.
        record: called with the fields of the event.
        is_closed: whether the session closes; the ranks may then no longer gather together.
    """

    def __init__(
        self, period: float, record: Callable[..., None], is_closed: Callable[[], bool]
    ) -> None:
        self._period, self._record, self._is_closed = period, record, is_closed

    def on_log(self, state: State, point: LogPoint) -> None:
        """Record histograms if a period ended since the last log point."""
        step = point.first_step + len(point.loss) - 1
        ended = count_periods(step, self._period) - count_periods(
            point.first_step - 1, self._period
        )
        if not ended or self._is_closed():
            return
        parameters = trainable_parameters(state.model)
        gradients = {
            name: parameter.grad
            for name, parameter in parameters.items()
            if parameter.grad is not None
        }
        weights = _describe_layers(parameters.items())
        self._record(step=step, weights=weights, gradients=_describe_layers(gradients.items()))


@torch.no_grad()
def _describe_layers(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, dict[str, Any]]:
    """Return the histogram of each layer that has finite values."""
    by_layer: dict[str, list[Tensor]] = {}
    for name, tensor in tensors:
        by_layer.setdefault(layer_of(name), []).append(tensor)
    described = {name: compute_histogram(found) for name, found in by_layer.items()}
    return {name: histogram for name, histogram in described.items() if histogram is not None}


def compute_histogram(tensors: list[Tensor]) -> dict[str, Any] | None:
    """Count the finite values of tensors in BINS ranges of the same width.

    Args:
        tensors: of one layer; all ranks must call this together if they are sharded.

    Returns:
        "min" and "max" of the values, "sum" and "sum_squares", and the "counts" of the ranges
        between min and max; None if no value is finite.
    """
    values = [_finite_values(full_tensor(tensor.detach())) for tensor in tensors]
    values = [part for part in values if part.numel()]
    if not values:
        return None
    dtype = sum_dtype(values[0].device)
    extremes = torch.stack([torch.stack(torch.aminmax(part)) for part in values]).to(dtype)
    low, high = float(extremes[:, 0].min()), float(extremes[:, 1].max())
    counts = torch.zeros(BINS, dtype=torch.int64, device=values[0].device)
    sums = torch.zeros(2, dtype=dtype, device=values[0].device)
    width = (high - low) / BINS or 1.0
    for part in _split(values):
        wide = part.to(dtype)
        bins = ((wide - low) / width).long().clamp_(0, BINS - 1)
        counts += torch.bincount(bins, minlength=BINS).to(counts.device)
        sums += torch.stack([wide.sum(), wide.square().sum()]).to(sums.device)
    total, squares = sums.tolist()
    histogram = {"min": low, "max": high, "sum": total, "sum_squares": squares}
    return {**histogram, "counts": counts.tolist()}


def _finite_values(tensor: Tensor) -> Tensor:
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.flatten()
    return flat[torch.isfinite(flat)]


def _split(values: list[Tensor]) -> Iterator[Tensor]:
    for part in values:
        yield from torch.split(part, _AT_ONCE)
