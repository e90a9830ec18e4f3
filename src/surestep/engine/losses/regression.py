"""Regression: numbers compared element by element."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False, repr=False, kw_only=True)
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

    above_zero = {"delta": "Use 1.0, or the size of usual errors."}
    delta: float = 1.0

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the Huber error summed."""
        return sum_in_fp32(functional.huber_loss, outputs, targets, delta=self.delta)


@dataclass(eq=False, repr=False, kw_only=True)
class Quantile(LossModule):
    """Quantiles of the target, by the pinball loss: one output per quantile.

    Args:
        quantiles: increasing shares between 0 and 1.

    Raises:
        TaskError: the quantiles do not increase, or one is not between 0 and 1.
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

    quantiles: Sequence[float] = (0.1, 0.5, 0.9)
    shares: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = list(self.quantiles) if isinstance(self.quantiles, Iterable) else []
        rising = all(a < b for a, b in itertools.pairwise(shares))
        if not shares or not rising or not shares[0] > 0 or not shares[-1] < 1:
            raise TaskError(
                f"quantiles={self.quantiles} are not rising shares between 0 and 1. Use "
                "(0.1, 0.5, 0.9)."
            )
        self.register_buffer(
            "shares", torch.as_tensor(shares, dtype=torch.float64), persistent=False
        )

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the pinball loss summed."""
        outputs = at_least_fp32(outputs)
        shares = self.shares.to(outputs.dtype)
        above = targets.unsqueeze(-1) - outputs
        return torch.maximum(shares * above, (shares - 1) * above).sum()

    def items(self, batch: Any, targets: Tensor) -> float:
        """Count elements times quantiles."""
        return targets.numel() * len(self.quantiles)

    def check(self, first: FirstBatch) -> None:
        """Check that there is an output for each quantile."""
        outputs, targets = expect.require_tensors(first)
        if outputs.shape != (*targets.shape, len(self.quantiles)):
            count = len(self.quantiles)
            hint = f"Return one number for each of the {count} quantiles; for one use mae()."
            raise self.shape_error(first, hint)
        expect.check_floating(targets, self.name)
