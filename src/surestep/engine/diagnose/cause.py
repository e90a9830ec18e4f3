"""What made the first value that is not finite: an operation, or what it was given."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Phase = Literal["forward", "backward", "batch", "weights", "given"]


@dataclass(frozen=True)
class TensorSummary:
    """A tensor, as its reader needs to see it.

    Attributes:
        shape: its sizes.
        dtype: such as "float32".
        low: the smallest finite value; None where there is none.
        high: the largest finite value.
        nan: how many values are NaN.
        inf: how many are infinite.
    """

    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None
    nan: int
    inf: int

    def __str__(self) -> str:
        within = "nothing finite" if self.low is None else f"{self.low:.4g} to {self.high:.4g}"
        bad = [f"{self.nan} NaN" if self.nan else "", f"{self.inf} infinite" if self.inf else ""]
        told = ", ".join(filter(None, [within, *bad]))
        return f"{self.dtype} {list(self.shape)} ({told})"


@dataclass(frozen=True)
class NonFiniteCause:
    """The first value that was not finite and that loss or gradients come from.

    Attributes:
        phase: an operation of the forward or the backward made it, or it stood in the batch, in
            the weights, or in another tensor that was there before the step.
        name: of the tensor, where it was there before.
        module: in which it was made, by name; "" is the model itself, None outside of it.
        operation: what made it, as torch calls it.
        called: the function that was called, where it has another name: of a backward, the one
            that it is the backward of.
        line: of the user's code, "file:line", where it stands between the model and torch.
        inputs: what the operation was given.
        output: what it made.
        rows: of the output in which something is not finite, along its first dimension.
        order: how many operations came before.
        intended: an infinite value that was written on purpose, as masks do.
    """

    phase: Phase
    name: str | None = None
    module: str | None = None
    operation: str | None = None
    called: str | None = None
    line: str | None = None
    inputs: tuple[TensorSummary, ...] = ()
    output: TensorSummary | None = None
    rows: tuple[int, ...] = ()
    order: int = 0
    intended: bool = False

    def sentence(self) -> str:
        """Tell of it in a sentence."""
        if self.phase == "batch":
            return f"The batch itself is not finite: {self.name} is {self.output}."
        if self.phase == "weights":
            return f"{self.name} was not finite before the step: it is {self.output}."
        place = self.place()
        if self.phase == "given":
            return f"A tensor that was there before the step is not finite: {self.output}, {place}."
        given = " and ".join(map(str, self.inputs[:3])) or "nothing"
        return (
            f"The first value that is not finite was made by {self._made_by()}, {place}: from "
            f"{given} it made {self.output}{self._limit()}."
        )

    def place(self) -> str:
        """Say in which module, and at which line of the user's code."""
        where = "in no module of the model, as in the loss"
        if self.module is not None:
            where = f"in {self.module!r}" if self.module else "in the model itself"
        return f"{where} ({self.line})" if self.line else where

    def _limit(self) -> str:
        """Say where the numbers of a half type end, which other types hold."""
        if self.output is None or self.output.dtype != "float16" or not self.output.inf:
            return ""
        return f"; float16 ends at {torch.finfo(torch.float16).max:,.0f}"

    def _made_by(self) -> str:
        if self.phase == "backward":
            return f"{self.operation} in the backward of {self.called or 'an operation'}"
        same = self.called is None or str(self.operation).endswith(f".{self.called}")
        return f"{self.operation}" if same else f"{self.operation} of {self.called}"


def summarize_tensor(tensor: Tensor) -> TensorSummary:
    """Look at a tensor; reads the device."""
    held = dense_values(tensor)
    finite = torch.isfinite(held)
    low = high = None
    if held.numel() and bool(finite.any()):
        numbers = held.abs() if held.is_complex() else held
        numbers = numbers[finite].double()
        low, high = float(numbers.min()), float(numbers.max())
    nan = int(torch.isnan(held).sum())
    inf = int(held.numel() - int(finite.sum()) - nan)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSummary(tuple(tensor.shape), dtype, low, high, nan, inf)


def nonfinite_rows(tensor: Tensor, limit: int = 4096) -> tuple[int, ...]:
    """List the rows of the first dimension that are not finite."""
    held = dense_values(tensor)
    if held.dim() == 0 or held.shape != tensor.shape:
        return ()
    bad = ~torch.isfinite(held.reshape(len(held), -1)).all(dim=1)
    return tuple(bad.nonzero().flatten()[:limit].tolist())


def dense_values(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor; those that are stored, of a sparse one."""
    held = tensor.detach()
    if held.layout == torch.sparse_coo:
        held = held._values()
    return held.float() if held.element_size() == 1 else held


def has_nonfinite(tensor: Tensor) -> bool:
    """Say whether something in it is not finite; reads the device."""
    held = dense_values(tensor)
    return held.numel() > 0 and not bool(torch.isfinite(held).all())


def has_nan(tensors: Iterable[Tensor]) -> bool:
    """Say whether something in one of these is NaN; reads the device."""
    return any(bool(torch.isnan(dense_values(each)).any()) for each in tensors)


def is_floating(value: object) -> bool:
    """Say whether it is a tensor whose values can be other than finite."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
