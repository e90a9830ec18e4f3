"""torchmetrics objects behind one metric: what they are given, and what is made of the result."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.engine.distributed.communicator import Communicator


class MetricInputs(NamedTuple):
    """What a torchmetrics object is given: numbers, and whether there was a NaN among them."""

    preds: Tensor
    targets: Tensor
    broken: Tensor


def _as_it_is(values: dict[str, Any]) -> dict[str, Any]:
    return values


class TorchMetricsAdapter(nn.Module):
    """Metrics of torchmetrics that take a model's outputs as they are; made by surestep.metrics.

    It has the verbs of torchmetrics: `update`, `compute`, `reset`; and moves with `to`.

    Args:
        metrics: torchmetrics objects by name; the name of an only one may be "".
        prepare: turns outputs and targets into what they are given, in one or several pieces.
        higher: of each value, or of the only one, whether larger is better; None is neither.
        finish: makes the result from the values of the objects.
        table: the shape of a result that is a table.

    Attributes:
        higher_is_better: what `higher` says.
        table: the shape of a result that is a table, or None.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any],
        prepare: Callable[[Any, Any], list[MetricInputs]],
        *,
        higher: Mapping[str, bool | None] | bool | None,
        finish: Callable[[dict[str, Any]], dict[str, Any]] = _as_it_is,
        table: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.names = list(metrics)
        self.metrics = nn.ModuleList(metrics.values())
        self.higher_is_better = higher
        self.table = table
        self._prepare = prepare
        self._finish = finish
        self._broken: Tensor | None = None

    def __repr__(self) -> str:
        return f"Prepared({', '.join(type(each).__name__ for each in self.metrics)})"

    def update(self, outputs: Any, targets: Any) -> None:
        """Add a batch.

        Raises:
            TaskError: outputs and targets that do not fit each other.
        """
        for seen in self._prepare(outputs, targets):
            for metric in self.metrics:
                metric.update(seen.preds, seen.targets)  # type: ignore[operator]
            so_far = self._broken
            self._broken = seen.broken if so_far is None else so_far | seen.broken

    def agree(self, world: Communicator) -> None:
        """Know what all ranks know: whether there was a NaN, or nothing at all."""
        own = -1.0 if self._broken is None else float(self._broken)
        (seen,) = world.all_reduce_max([own])
        self._broken = None if seen < 0 else torch.tensor(seen > 0)

    def compute(self) -> Any:
        """Return a number, a table, or numbers by name; NaN where it is not known."""
        if self._broken is None or bool(self._broken):
            return self._unknown()
        with warnings.catch_warnings():
            # torchmetrics warns of classes that are absent, and returns 0; here they give NaN.
            warnings.simplefilter("ignore", UserWarning)
            values = {
                name: metric.compute()  # type: ignore[operator]
                for name, metric in zip(self.names, self.metrics, strict=True)
            }
        return self._finish(values) if isinstance(self.higher_is_better, Mapping) else values[""]

    def _unknown(self) -> Any:
        if isinstance(self.higher_is_better, Mapping):
            return dict.fromkeys(self.higher_is_better, float("nan"))
        return torch.full(self.table or (), torch.nan)

    def reset(self) -> None:
        """Forget what was seen."""
        self._broken = None
        for metric in self.metrics:
            metric.reset()  # type: ignore[operator]
