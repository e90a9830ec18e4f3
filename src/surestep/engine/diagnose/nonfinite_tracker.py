"""Follow non-finite values from the operation that made them to the loss and the gradients.

Infinite values alone are not a failure: masks contain them, and `where` discards what a logarithm
makes of 0. So each storage that holds a non-finite value is marked with the cause, every operation
passes the marks of its inputs on, and the cause of a step is the mark of its loss or of a gradient.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from surestep.engine.batch import flatten_tensors
from surestep.engine.device import sum_dtype
from surestep.engine.diagnose.module_tracker import ModuleTracker
from surestep.engine.model.compile import DispatchMode

Phase = Literal["forward", "backward", "batch", "weights", "given"]

_UNINITIALIZED = ("aten::empty", "aten::new_empty")
_OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_")


@dataclass(frozen=True)
class TensorSummary:
    """Shape, dtype, range of the finite values (None: there are none), and non-finite counts."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None
    nan: int
    inf: int

    def __str__(self) -> str:
        within = "nothing finite" if self.low is None else f"{self.low:.4g} to {self.high:.4g}"
        bad = [f"{self.nan} NaN" if self.nan else "", f"{self.inf} infinite" if self.inf else ""]
        return f"{self.dtype} {list(self.shape)} ({', '.join(filter(None, [within, *bad]))})"


@dataclass(frozen=True)
class NonFiniteCause:
    """The first non-finite value that the loss or the gradients come from.

    Attributes:
        phase: an operation of the forward or backward pass made the value, or it was in the batch,
            in the weights, or in another tensor from before the step ("given").
        name: the tensor of the batch or the model.
        module: the module that made it, by name; "" is the model itself, None is outside of it.
        operation: the operation that made it, as torch calls it.
        called: the function that was called; of a backward, the one that it differentiates.
        line: the line of your code, "file:line"; None if torch or surestep made the call.
        inputs: what the operation got.
        output: what it made.
        order: the number of operations before it.
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
    order: int = 0
    intended: bool = False

    def describe(self) -> str:
        """Return one sentence."""
        if self.phase == "batch":
            return f"The batch itself is not finite: {self.name} is {self.output}."
        if self.phase == "weights":
            return f"{self.name} was not finite before the step: it is {self.output}."
        place = "outside the modules of the model, such as in the loss"
        if self.module is not None:
            place = f"in {self.module!r}" if self.module else "in the model itself"
        if self.line:
            place = f"{place} ({self.line})"
        if self.phase == "given":
            return f"A tensor from before the step is not finite: {self.output}, {place}."
        maker = f"{self.operation}"
        if self.phase == "backward":
            maker = f"{maker} in the backward pass of {self.called or 'an operation'}"
        elif self.called is not None and not maker.endswith(f".{self.called}"):
            maker = f"{maker} of {self.called}"
        inputs = " and ".join(map(str, self.inputs[:3])) or "nothing"
        limit = ""
        if self.output is not None and self.output.dtype == "float16" and self.output.inf:
            limit = f"; the largest float16 value is {torch.finfo(torch.float16).max:,.0f}"
        return (
            f"The first value that is not finite was computed by {maker}, {place}: from {inputs} "
            f"it computed {self.output}{limit}."
        )


class NonFiniteTracker(DispatchMode):
    """Watches every operation of forward and backward; reads the device after each.

    Args:
        modules: knows the module that runs.
        before: tensors from before the step, by (phase, name).
    """

    def __init__(self, modules: ModuleTracker, before: Mapping[tuple[Any, str], Tensor]) -> None:
        super().__init__()
        self.modules = modules
        self.operations = 0
        self._marks: dict[int, NonFiniteCause] = {}
        for (phase, name), tensor in before.items():
            if is_floating(tensor) and has_nonfinite(tensor):
                cause = NonFiniteCause(phase, name, output=_summarize(tensor))
                self._marks.setdefault(_storage(tensor), cause)

    def cause_of(self, tensor: Tensor) -> NonFiniteCause | None:
        """Return the cause of a non-finite tensor; None if no operation was seen to make it."""
        return self._marks.get(_storage(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if _is_view(schema) or schema.name.startswith(_UNINITIALIZED):
            return func(*args, **kwargs)
        self.operations += 1
        read = [tensor for tensor in flatten_tensors((args, kwargs)) if is_floating(tensor)]
        if schema.name in _OVERWRITES:
            read = [tensor for tensor in read if tensor is not args[0]]
        bad = [
            tensor for tensor in read if _storage(tensor) in self._marks and has_nonfinite(tensor)
        ]
        marks = [self._marks[_storage(tensor)] for tensor in bad]
        had_nan = _has_nan(bad)
        inputs = tuple(map(_summarize, read)) if schema.is_mutable else None  # before it is written
        result = func(*args, **kwargs)
        for output in filter(is_floating, _outputs(schema, args, kwargs, result)):
            if not has_nonfinite(output):
                if not schema.is_mutable:
                    self._marks.pop(_storage(output), None)
                continue
            cause = _inherited(marks, new_nan=_has_nan([output]) and not had_nan)
            if cause is None:
                numbers = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, float))
                literal = not all(map(math.isfinite, numbers))
                candidates = [] if marks or literal or inputs is not None else read
                existing = next(filter(has_nonfinite, candidates), None)
                at = self.modules.current()
                cause = NonFiniteCause(
                    "given" if existing is not None else "backward" if at.backward else "forward",
                    module=at.module,
                    operation=schema.name.replace("::", "."),
                    called=at.called,
                    line=at.line,
                    inputs=tuple(map(_summarize, read)) if inputs is None else inputs,
                    output=_summarize(output if existing is None else existing),
                    order=self.operations,
                    intended=literal and not marks,
                )
            self._marks[_storage(output)] = cause
        return result


def _inherited(marks: list[NonFiniteCause], *, new_nan: bool) -> NonFiniteCause | None:
    """Return the cause that an operation passes on; None if the operation is a cause itself.

    Infinite values that were written on purpose explain other infinite values, but no NaN.
    """
    real = [mark for mark in marks if not mark.intended]
    if real:
        return min(real, key=lambda mark: mark.order)
    return None if new_nan or not marks else marks[0]


def _storage(tensor: Tensor) -> int:
    values: Any = tensor._values() if tensor.is_sparse else tensor
    key: int = values.untyped_storage()._cdata
    return key


def _is_view(schema: Any) -> bool:
    infos = [entry.alias_info for entry in schema.returns]
    return any(info is not None and not info.is_write for info in infos)


def _outputs(schema: Any, args: Any, kwargs: Any, result: Any) -> Iterable[Tensor]:
    """Return what an operation made, and what it wrote into."""
    outputs = flatten_tensors(result)
    for index, argument in enumerate(schema.arguments if schema.is_mutable else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            outputs += [
                tensor
                for tensor in flatten_tensors(value)
                if all(tensor is not output for output in outputs)
            ]
    return outputs


def _summarize(tensor: Tensor) -> TensorSummary:
    values = _stored_values(tensor)
    finite = torch.isfinite(values)
    low = high = None
    if values.numel() and bool(finite.any()):
        numbers = values.abs() if values.is_complex() else values
        numbers = numbers[finite].to(sum_dtype(numbers.device))
        low, high = float(numbers.min()), float(numbers.max())
    nan = int(torch.isnan(values).sum())
    inf = int(values.numel() - int(finite.sum()) - nan)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSummary(tuple(tensor.shape), dtype, low, high, nan, inf)


def _stored_values(tensor: Tensor) -> Tensor:
    values = tensor.detach()
    if values.layout == torch.sparse_coo:
        values = values._values()
    return values.float() if values.element_size() == 1 else values


def has_nonfinite(tensor: Tensor) -> bool:
    """Return whether a value is NaN or infinite; reads the device."""
    values = _stored_values(tensor)
    return values.numel() > 0 and not bool(torch.isfinite(values).all())


def _has_nan(tensors: Iterable[Tensor]) -> bool:
    return any(bool(torch.isnan(_stored_values(tensor)).any()) for tensor in tensors)


def is_floating(value: object) -> bool:
    """Return whether a value is a tensor that can hold non-finite values."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
