"""Regression: numbers compared element by element."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from surestep.base.errors import TaskError
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses.base import FirstBatch, LossDoc, LossModule, at_least_fp32, sum_in_fp32

_TORCH = "https://docs.pytorch.org/docs/stable/generated/torch.nn.{}.html"
_NUMBERS = "numbers (N, ...), same shape as the targets"
_SAME = "numbers, same shape as the outputs"


class _Elementwise(LossModule):
    """A mean over elements of two tensors of one shape."""

    over = "elements"
    function: ClassVar[Callable[..., Tensor]]

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the error summed over elements."""
        return sum_in_fp32(self.function, outputs, targets)

    def check(self, first: FirstBatch) -> None:
        """Check that shapes are equal and targets floating point numbers."""
        _, targets = expect.check_same_shape(first)
        expect.check_floating(targets, self.name)


class Mse(_Elementwise):
    """Squared error: predicts the mean; sensitive to outliers."""

    name = "mse"
    doc = LossDoc(
        "regression: the mean", _NUMBERS, _SAME, "(x - t)^2", "elements", _TORCH.format("MSELoss")
    )
    function = staticmethod(functional.mse_loss)


class Mae(_Elementwise):
    """Absolute error: predicts the median."""

    name = "mae"
    doc = LossDoc(
        "regression: the median", _NUMBERS, _SAME, "|x - t|", "elements", _TORCH.format("L1Loss")
    )
    function = staticmethod(functional.l1_loss)


class Huber(_Elementwise):
    """Squared error near the target, absolute error far from it.

    Args:
        delta: distance from the target at which the error becomes absolute.
    """

    name = "huber"
    doc = LossDoc(
        "regression with outliers",
        _NUMBERS,
        _SAME,
        "(x - t)^2 / 2 where |x - t| <= delta, else delta (|x - t| - delta / 2)",
        "elements",
        _TORCH.format("HuberLoss"),
    )

    def __init__(self, *, delta: float = 1.0) -> None:
        super().__init__(delta=delta)
        if delta <= 0:
            raise TaskError(f"delta={delta} is not above 0. Use 1.0, or the size of usual errors.")
        self.delta = delta

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the Huber error summed."""
        return sum_in_fp32(functional.huber_loss, outputs, targets, delta=self.delta)


class Quantile(LossModule):
    """Quantiles of the target, by the pinball loss: one output per quantile.

    Args:
        quantiles: increasing shares between 0 and 1.
    """

    name = "quantile"
    doc = LossDoc(
        "regression: quantiles",
        "numbers (N, ..., Q), one per quantile",
        "numbers (N, ...)",
        "max(q (t - x), (q - 1) (t - x))",
        "elements times quantiles",
        "Koenker and Bassett 1978, https://doi.org/10.2307/1913643",
    )

    quantiles: Tensor

    def __init__(self, *, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> None:
        if isinstance(quantiles, float | int):
            raise TaskError(
                f"quantiles={quantiles} is one number. Use (0.1, 0.5, 0.9), or "
                f"({quantiles},) for one."
            )
        super().__init__(quantiles=tuple(quantiles))
        rising = all(a < b for a, b in itertools.pairwise(quantiles))
        if not quantiles or not rising or not quantiles[0] > 0 or not quantiles[-1] < 1:
            raise TaskError(
                f"quantiles={tuple(quantiles)} are not rising shares between 0 and 1. Use "
                "(0.1, 0.5, 0.9)."
            )
        self.register_buffer(
            "quantiles", torch.tensor(quantiles, dtype=torch.float64), persistent=False
        )

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the pinball loss summed."""
        outputs = at_least_fp32(outputs)
        quantiles = self.quantiles.to(outputs.dtype)
        above = targets.unsqueeze(-1) - outputs
        return torch.maximum(quantiles * above, (quantiles - 1) * above).sum()

    def items(self, batch: Any, targets: Tensor) -> float:
        """Count elements times quantiles."""
        return targets.numel() * len(self.options["quantiles"])

    def check(self, first: FirstBatch) -> None:
        """Check that there is an output for each quantile."""
        outputs, targets = expect.require_tensors(first)
        wanted = len(self.options["quantiles"])
        if outputs.shape != (*targets.shape, wanted):
            raise TaskError(
                f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
                f"{tuple(targets.shape)}: quantile takes outputs {(*targets.shape, wanted)}, one "
                f"for each of the {wanted} quantiles. For one number use surestep.losses.mae()."
            )
        expect.check_floating(targets, self.name)
