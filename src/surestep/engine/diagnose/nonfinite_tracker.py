"""Follow values that are not finite from where they were made to the loss and the gradients.

An infinite value is no failure by itself: masks are made of them, and `where` throws away what a
logarithm makes of 0. So each storage that holds a value that is not finite is marked with what
made it, the mark is handed on by every operation, and the cause is the mark of the loss, or of a
gradient. Views share their storage, and so the mark.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from surestep.engine.batch import flatten_tensors
from surestep.engine.diagnose.cause import (
    NonFiniteCause,
    has_nan,
    has_nonfinite,
    is_floating,
    nonfinite_rows,
    summarize_tensor,
)
from surestep.engine.diagnose.module_tracker import ModuleTracker
from surestep.engine.dispatch import DispatchMode

_UNSET = ("aten::empty", "aten::new_empty")  # memory that holds whatever was there
_OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_")


class NonFiniteTracker(DispatchMode):
    """See every operation, also those of the backward; reads the device after each.

    Args:
        where: knows the module that runs.
        before: tensors that are there before the step, by (phase, name).
    """

    def __init__(self, where: ModuleTracker, before: Mapping[tuple[Any, str], Tensor]) -> None:
        super().__init__()
        self.modules = where
        self.operations = 0
        self._marks: dict[int, NonFiniteCause] = {}
        for (phase, name), tensor in before.items():
            if is_floating(tensor) and has_nonfinite(tensor):
                rows = nonfinite_rows(tensor)
                cause = NonFiniteCause(phase, name, output=summarize_tensor(tensor), rows=rows)
                self._marks.setdefault(_storage(tensor), cause)

    def cause_of(self, tensor: Tensor) -> NonFiniteCause | None:
        """Return what made a tensor that is not finite; None where that was not seen."""
        return self._marks.get(_storage(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if _is_view(schema) or schema.name.startswith(_UNSET):
            return func(*args, **kwargs)
        self.operations += 1
        read = [each for each in flatten_tensors((args, kwargs)) if is_floating(each)]
        if schema.name in _OVERWRITES:
            read = [each for each in read if each is not args[0]]
        bad = [each for each in read if _storage(each) in self._marks and has_nonfinite(each)]
        marks = [self._marks[_storage(each)] for each in bad]
        nan = has_nan(bad)
        # What is written into is another one afterwards.
        inputs = tuple(map(summarize_tensor, read)) if schema.is_mutable else None
        made = func(*args, **kwargs)
        outputs = [each for each in _outputs(schema, args, kwargs, made) if is_floating(each)]
        for output in outputs:
            if not has_nonfinite(output):
                if not schema.is_mutable:
                    self._marks.pop(_storage(output), None)
                continue
            found = _inherited(marks, nan=has_nan([output]) and not nan)
            if found is None:
                literal = any(_is_infinite(each) for each in (*args, *kwargs.values()))
                there = read if inputs is None else []
                given = None if marks or literal else next(filter(has_nonfinite, there), None)
                shown = tuple(map(summarize_tensor, read)) if inputs is None else inputs
                found = self._new(func, shown, output, given=given, intended=literal and not marks)
            self._marks[_storage(output)] = found
        return made

    def _new(
        self, func: Any, inputs: tuple[Any, ...], output: Tensor, *, given: Any, intended: bool
    ) -> NonFiniteCause:
        """Make the cause of an output that nothing before it explains."""
        at = self.modules.current()
        shown = output if given is None else given
        return NonFiniteCause(
            "given" if given is not None else "backward" if at.backward else "forward",
            module=at.module,
            operation=func._schema.name.replace("::", "."),
            called=at.called,
            line=at.line,
            inputs=inputs,
            output=summarize_tensor(shown),
            rows=nonfinite_rows(shown),
            order=self.operations,
            intended=intended,
        )


def _inherited(marks: list[NonFiniteCause], *, nan: bool) -> NonFiniteCause | None:
    """Return the cause that an operation hands on; None where it made something new.

    Infinite values that were written on purpose explain other infinite ones, but no NaN.
    """
    real = [mark for mark in marks if not mark.intended]
    if real:
        return min(real, key=lambda mark: mark.order)
    return None if nan or not marks else marks[0]


def _storage(tensor: Tensor) -> int:
    held: Any = tensor._values() if tensor.is_sparse else tensor
    key: int = held.untyped_storage()._cdata
    return key


def _is_view(schema: Any) -> bool:
    """Say whether an operation only looks at the memory of another tensor."""
    infos = [each.alias_info for each in schema.returns]
    return any(each is not None and not each.is_write for each in infos)


def _outputs(schema: Any, args: Any, kwargs: Any, made: Any) -> Iterable[Tensor]:
    """Return what an operation made, and what it wrote into."""
    outputs = flatten_tensors(made)
    if not schema.is_mutable:
        return outputs
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            outputs += [
                each for each in flatten_tensors(value) if all(each is not o for o in outputs)
            ]
    return outputs


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
