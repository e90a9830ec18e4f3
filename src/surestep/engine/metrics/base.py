"""Metrics: torchmetrics objects or plain callables, on the device, weighted by their count."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch
from surestep.engine.device import sum_dtype
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.losses.base import at_least_fp32
from surestep.engine.metrics.distributed import sync_metrics
from surestep.engine.metrics.whole_set import WholeSet, WholeSetMetric, named_values
from surestep.engine.value import Value

logged: list[tuple[str, Tensor]] = []


def log(name: str, value: Tensor) -> None:
    """Log a scalar tensor from inside a loss or a model, without waiting for the device.

    The events have its mean over the step, under `name`. Several calls in one micro-batch are
    averaged; micro-batches are weighted by their items.

    Args:
        name: its name in the events.
        value: a scalar tensor; it is detached here.

    Raises:
        TaskError: the value is not a scalar tensor.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise TaskError(f"log({name!r}, ...) takes a scalar tensor, and got {shape}.")
    logged.append((name, at_least_fp32(value.detach().reshape(()))))


def pop_logged(share: float = 1.0) -> list[tuple[str, Tensor]]:
    """Return what was logged since the last call; of each name, values that add up to their mean.

    Args:
        share: of the micro-batch in its batch, by items.
    """
    times = Counter(name for name, _ in logged)
    taken = [(name, value * (share / times[name])) for name, value in logged]
    logged.clear()
    return taken


@dataclass(frozen=True)
class InputMetric:
    """A metric that is computed from the model and its inputs, such as a gradient of the inputs.

    Attributes:
        function: `function(model, inputs, targets)`, which returns a mean over the batch or a pair
            (sum, count). `inputs` is a tuple of positional or a dict of keyword arguments, or the
            single argument.
    """

    function: Callable[[nn.Module, Any, Any], Any]

    def __call__(self, seen: tuple[nn.Module, Any], targets: Any) -> Any:
        """Measure a model on a batch."""
        return self.function(*seen, targets)


def input_metric_outputs(metric: "OpenMetric", model: nn.Module, micro: MicroBatch) -> Any:
    """Return what a metric of the inputs sees in place of outputs; None for another one."""
    if not isinstance(metric, MeanMetric) or not isinstance(metric.function, InputMetric):
        return None
    if micro.kwargs:
        return model, dict(micro.kwargs)
    return model, micro.args[0] if len(micro.args) == 1 else micro.args


class MeanMetric:
    """A callable's mean over samples or unmasked tokens; one read when it is asked for."""

    def __init__(self, name: str, function: Any, device: torch.device) -> None:
        self.name = name
        self.function = function
        self.total = torch.zeros((), dtype=sum_dtype(device), device=device)
        self.count: Any = 0

    def update(self, outputs: Any, targets: Any, count: int, at: range) -> None:
        """Add a batch, which holds `count` samples or unmasked tokens."""
        if not count:
            return
        value = self.function(outputs, targets)
        if isinstance(value, tuple) and len(value) == 2:
            total, counted = value
        else:
            kind = value.dtype if isinstance(value, Tensor) else self.total.dtype
            total, counted = torch.as_tensor(value, dtype=kind, device=self.total.device), count
            if total.numel() != 1:
                raise TaskError(
                    f"metrics[{self.name!r}] returned a tensor of shape {tuple(total.shape)}. "
                    "Return a mean over the batch, or a pair (sum, count)."
                )
            total = total.reshape(()).double() * count
        self.total += total
        self.count = self.count + counted

    def compute(self, world: Communicator = ALONE) -> dict[str, Value]:
        """Return the mean over all ranks; NaN if nothing was counted."""
        total, count = world.all_reduce_sum([float(self.total), float(self.count)])
        return {self.name: total / count if count else float("nan")}


class ObjectMetric:
    """An object with `update`, `compute` and `reset`, as those of torchmetrics."""

    def __init__(self, name: str, metric: Any, device: torch.device) -> None:
        self.name = name
        self.metric = metric
        if callable(getattr(metric, "to", None)):
            metric.to(device)
        self.metric.reset()

    def update(self, outputs: Any, targets: Any, count: int, at: range) -> None:
        """Add a batch, unless nothing in it counts."""
        if count:
            self.metric.update(outputs, targets)

    def compute(self, world: Communicator = ALONE) -> dict[str, Value]:
        """Return its value over all ranks, or its values by "name_key" where it has several."""
        with sync_metrics(self.metric, world):
            return named_values(self.name, self.metric.compute())


OpenMetric = MeanMetric | ObjectMetric | WholeSetMetric


def init_metrics(metrics: Mapping[str, Any], device: torch.device) -> list[OpenMetric]:
    """Return the metrics, empty, for one evaluation."""
    return [_open(name, metric, device) for name, metric in metrics.items()]


def _open(name: str, metric: Any, device: torch.device) -> OpenMetric:
    if isinstance(metric, WholeSet):
        return WholeSetMetric(name, metric)
    return (ObjectMetric if hasattr(metric, "compute") else MeanMetric)(name, metric, device)


def check_metric(name: str, metric: Any) -> None:
    """Check that a metric is a function, or an object with the methods of torchmetrics.

    Raises:
        TaskError: it is neither.
    """
    kind = type(metric).__name__
    if isinstance(metric, type):
        raise TaskError(
            f"metrics[{name!r}]={metric.__name__} is a class. Write {metric.__name__}()."
        )
    if hasattr(metric, "compute"):
        missing = [verb for verb in ("update", "reset") if not hasattr(metric, verb)]
        if missing:
            raise TaskError(
                f"metrics[{name!r}] is a {kind}, which has compute and lacks "
                f"{' and '.join(missing)}. Give an object with update(outputs, targets), compute() "
                "and reset(), or surestep.whole_set(fn) of a function of (outputs, targets)."
            )
    elif not callable(metric):
        raise TaskError(
            f"metrics[{name!r}] is a {kind}, not a function of (outputs, targets) or an object "
            "with update, compute and reset, such as those of torchmetrics."
        )


def metric_modes(name: str, metric: Any) -> dict[str, Literal["min", "max"] | None]:
    """Return the names a metric is known by, and whether smaller or larger is better, if it says.

    What has several values, as a torchmetrics collection, is known by "name_key".
    """
    if isinstance(getattr(metric, "higher_is_better", None), Mapping):
        directions = metric.higher_is_better.items()
        return {f"{name}_{key}": _named(higher) for key, higher in directions}
    if isinstance(metric, nn.ModuleDict):
        return {f"{name}_{key}": _direction(part) for key, part in metric.items()}
    return {name: _direction(metric)}


def table_metric_names(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of metrics that are known to be tables before they are computed."""
    return tuple(name for name, metric in metrics.items() if is_confusion(metric))


def is_confusion(metric: Any) -> bool:
    """Return whether a metric is a confusion matrix: rows true, columns predicted classes."""
    return "ConfusionMatrix" in type(metric).__name__


def _direction(metric: Any) -> Literal["min", "max"] | None:
    return _named(getattr(metric, "higher_is_better", None))


def _named(higher: bool | None) -> Literal["min", "max"] | None:
    return None if higher is None else "max" if higher else "min"
