"""Metrics: torchmetrics objects or plain callables, on the device, weighted by their count.

torchmetrics gathers the states of several ranks. Its own way of gathering hangs or mixes up types
where a rank had no sample, so it is given another one.
"""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.batch import MicroBatch
from surestep.engine.device import as_summand, ran_out, sum_dtype
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.metrics.copies import copy_metric, objects_in
from surestep.engine.metrics.whole_set import WholeSet, WholeSetMetric, named_values
from surestep.engine.step_outcome import Logged
from surestep.engine.value import Value

_BY_SUMS = "Give a function of (outputs, targets) that returns (sum, count)"
# What to type for a metric that is not a function; "{!r}" is its name.
EXAMPLE = "metrics={{{!r}: lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()}}"
logged: list[tuple[str, Tensor]] = []


def log(name: str, value: Tensor) -> None:
    """Log a scalar tensor from inside a loss or a model, without waiting for the device.

    The events have its mean over the step, under `name`: over the micro-batches of all ranks that
    log it, weighted by their items. Several calls in one micro-batch are averaged. What an
    evaluation logs is dropped.

    Args:
        name: its name in the events.
        value: a scalar tensor; it is detached here.

    Raises:
        TaskError: the value is not a scalar tensor.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise TaskError(f"log({name!r}, ...) takes a scalar tensor, and got {shape}.")
    logged.append((name, value.detach().reshape(()).to(sum_dtype(value.device))))


def pop_logged(items: float = 1.0) -> list[Logged]:
    """Return what was logged since the last call, as parts of means.

    Args:
        items: of the micro-batch that logged it.
    """
    times = Counter(name for name, _ in logged)
    shares = {name: items / count for name, count in times.items()}
    taken = [Logged(name, value * shares[name], shares[name]) for name, value in logged]
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
    return model, micro.inputs


class MeanMetric:
    """A callable's mean over samples or unmasked tokens; one read when it is asked for."""

    def __init__(self, name: str, function: Any, device: torch.device) -> None:
        self.name = name
        self.function = function
        self._is_mean = False  # the function has returned a mean
        self._undefined = _Undefined(name)
        self.total = torch.zeros((), dtype=sum_dtype(device), device=device)
        self.count: Any = 0

    def update(self, outputs: Any, targets: Any, count: int, at: range) -> None:
        """Add a batch, which holds `count` samples or unmasked tokens.

        A mean over nothing adds nothing. A pair (sum, count) may be over something else.
        """
        value = None
        if count or not self._is_mean:
            with self._undefined.allowed(count):
                value = self.function(outputs, targets)
        if isinstance(value, tuple) and len(value) == 2:
            total, counted = map(self._as_summand, value)
            if not count and not counted:
                return  # the sum may be NaN: a mean of nothing times 0
        elif not count:
            return
        else:
            self._is_mean = True
            total, counted = self._as_summand(value), torch.tensor(count)
            if total.numel() != 1:
                raise TaskError(
                    f"metrics[{self.name!r}] returned a tensor of shape {tuple(total.shape)}. "
                    "Return a mean over the batch, or a pair (sum, count)."
                )
            total = total.reshape(()) * counted
        self.total += total
        self.count = self.count + counted

    def _as_summand(self, value: Any) -> Tensor:
        try:
            return as_summand(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TaskError(
                f"metrics[{self.name!r}] returned a {type(value).__name__}. Return a mean over the "
                "batch, or a pair (sum, count). For several values, return a dict from "
                "surestep.whole_set(fn), or pass several metrics."
            ) from error

    def compute(self, world: Communicator = ALONE) -> dict[str, Value]:
        """Return the mean over all ranks; NaN if nothing was counted."""
        if not self._is_mean:  # a mean over nothing adds nothing
            self._undefined.warn()
        total, count = world.all_reduce_sum([float(self.total), float(self.count)])
        return {self.name: total / count if count else float("nan")}


class ObjectMetric:
    """An object with `update`, `compute` and `reset`, as those of torchmetrics."""

    def __init__(self, name: str, metric: Any, device: torch.device) -> None:
        self.name = name
        self.metric = metric
        self._undefined = _Undefined(name)
        if callable(getattr(metric, "to", None)):
            metric.to(device)
        self.metric.reset()

    def update(self, outputs: Any, targets: Any, count: int, at: range) -> None:
        """Add a batch, of which `count` samples or tokens are not ignored."""
        with self._undefined.allowed(count):
            self.metric.update(outputs, targets)

    def compute(self, world: Communicator = ALONE) -> dict[str, Value]:
        """Return its value over all ranks, or its values by "name_key" where it has several."""
        self._undefined.warn()
        with sync_metrics(self.metric, world):
            return named_values(self.name, self.metric.compute())


class _Undefined:
    """Remembers that a metric failed on a batch whose targets are all ignored."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._error = ""  # not the exception: its traceback keeps the batch

    @contextmanager
    def allowed(self, count: int) -> Iterator[None]:
        """Allow an error if no target counts."""
        try:
            yield
        except Exception as error:  # whatever the user's metric raises
            if count or ran_out(error):
                raise
            self._error = repr(error)

    def warn(self) -> None:
        """Warn that such a batch is left out, if there was one."""
        if self._error:
            warn(
                f"metrics[{self._name!r}] leaves out a batch whose targets are all ignored: it "
                f"failed there: {self._error}. If the batch counts, correct the metric."
            )


OpenMetric = MeanMetric | ObjectMetric | WholeSetMetric


def init_metrics(metrics: Mapping[str, Any], device: torch.device) -> list[OpenMetric]:
    """Return the metrics, empty, for one evaluation."""
    found: list[OpenMetric] = []
    used: set[int] = set()
    for name, metric in metrics.items():
        if isinstance(metric, WholeSet):
            found.append(WholeSetMetric(name, metric))
        elif hasattr(metric, "compute"):
            parts = objects_in(metric)
            # An object with two names, or in a collection too, would get each batch twice.
            own = copy_metric(metric) if parts & used else metric
            used |= parts
            found.append(ObjectMetric(name, own, device))
        else:
            found.append(MeanMetric(name, metric, device))
    return found


def check_metric(name: str, metric: Any) -> None:
    """Check that a metric is a function, or an object with the methods of torchmetrics."""
    if isinstance(metric, type):
        raise TaskError(
            f"metrics[{name!r}]={metric.__name__} is a class. Write {metric.__name__}()."
        )
    has_methods = hasattr(metric, "update") and hasattr(metric, "reset")
    if not (has_methods if hasattr(metric, "compute") else callable(metric)):
        raise TaskError(
            f"metrics[{name!r}] is a {type(metric).__name__}, which is not a function of (outputs, "
            "targets), nor an object with update, compute and reset, such as those of "
            f"torchmetrics. Write {EXAMPLE.format(name)}."
        )


def metric_modes(name: str, metric: Any) -> dict[str, Literal["min", "max"] | None]:
    """Return the names a metric is known by, and whether smaller or larger is better, if it says.

    What has several values, as a torchmetrics collection, is known by "name_key".
    """
    higher = getattr(metric, "higher_is_better", None)
    if isinstance(metric, nn.ModuleDict):
        higher = {key: getattr(part, "higher_is_better", None) for key, part in metric.items()}
    if isinstance(higher, Mapping):
        return {f"{name}_{key}": _mode(one) for key, one in higher.items()}
    return {name: _mode(higher)}


def names_of_objects(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of metrics that may return a dict of values."""
    return tuple(
        name
        for name, metric in metrics.items()
        if hasattr(metric, "compute") or isinstance(metric, WholeSet)
    )


def find_object(name: str, objects: Iterable[str]) -> str | None:
    """Return which of the metrics `name` can be a value of, as "metric_key"."""
    return max((one for one in objects if name.startswith(f"{one}_")), key=len, default=None)


def _mode(higher_is_better: Any) -> Literal["min", "max"] | None:
    if not isinstance(higher_is_better, bool):
        return None
    return "max" if higher_is_better else "min"


def table_metric_names(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of metrics that are known to be tables before they are computed."""
    return tuple(name for name, metric in metrics.items() if is_confusion(metric))


def is_confusion(metric: Any) -> bool:
    """Return whether a metric is a confusion matrix: rows true, columns predicted classes."""
    return "ConfusionMatrix" in type(metric).__name__


def check_metrics_of_ranks(metrics: Mapping[str, Any]) -> None:
    """Check that each metric that is an object can be put together from several ranks."""
    for name, metric in metrics.items():
        if hasattr(metric, "compute") and not has_torchmetrics(metric):
            raise TaskError(
                f"metrics[{name!r}] is a {type(metric).__name__}, and its states on several "
                f"ranks cannot be merged. {_BY_SUMS}, surestep.whole_set(fn) of a function over "
                "all predictions, or a torchmetrics.Metric."
            )
        for part in _parts(metric):
            base: Any = next(kind for kind in type(part).__mro__ if kind.__name__ == "Metric")
            if part._sync_dist.__func__ is not base._sync_dist:
                continue  # it has a way of its own
            for state, how in part._reductions.items():
                is_list = how is None and isinstance(part._defaults[state], list)
                if is_list or getattr(how, "__name__", "") == "dim_zero_mean":
                    raise TaskError(
                        f"metrics[{name!r}]: the state {state!r} of {type(part).__name__} is a "
                        "mean or a list that torchmetrics cannot merge exactly over several "
                        f"ranks. {_BY_SUMS}."
                    )


def has_torchmetrics(metric: Any) -> bool:
    """Return whether a metric is an object of torchmetrics, or has some."""
    return any(True for _ in _parts(metric))


def _parts(metric: Any) -> Iterator[Any]:
    """Yield the torchmetrics objects in a metric."""
    for module in metric.modules() if isinstance(metric, nn.Module) else ():
        if hasattr(module, "_reductions") and hasattr(module, "dist_sync_fn"):
            yield module


@contextmanager
def sync_metrics(metric: Any, world: Communicator) -> Iterator[None]:
    """Let what a metric computes be of all ranks."""
    if world.size == 1:
        yield
        return
    for part in _parts(metric):
        part.dist_sync_fn = partial(all_gather_uneven, world=world)
    with warnings.catch_warnings():
        # A rank without samples has what the others have seen.
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
        yield


def all_gather_uneven(own: Tensor, group: Any = None, *, world: Communicator) -> list[Tensor]:
    """Return a tensor of each rank, in the order of ranks; the first dimensions may differ.

    One without elements gets the type and the shape of the others. torchmetrics passes `group`.
    """
    text = json.dumps([str(own.dtype).removeprefix("torch."), list(own.shape)])
    seen = [json.loads(other) for other in world.all_gather_text(text)]
    sizes = [torch.Size(shape).numel() for _, shape in seen]
    if not any(sizes):
        return [own] * world.size
    name, like = next(layout for layout, size in zip(seen, sizes, strict=True) if size)
    flat = torch.zeros(max(sizes), dtype=getattr(torch, name), device=own.device)
    flat[: own.numel()] = own.reshape(-1)
    gathered = [torch.empty_like(flat) for _ in seen]
    dist.all_gather(gathered, flat)
    return [
        tensor[:size].view(shape if size else [0, *like[1:]])
        for tensor, size, (_, shape) in zip(gathered, sizes, seen, strict=True)
    ]
