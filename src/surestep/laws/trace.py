"""Which module made two runs differ: the inputs and outputs of every call in one step."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import nn

from surestep.engine.batch import flatten_tensors
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Functions
from surestep.laws.record import Digest, digest_value


class ModuleCall(NamedTuple):
    """A call of a module.

    Attributes:
        name: of the module in the model; "" is the model itself.
        kind: its class.
        where: file and line of its forward; "" if it is torch's.
        inputs: that it got.
        outputs: that it returned.
    """

    name: str
    kind: str
    where: str
    inputs: tuple[Digest, ...]
    outputs: tuple[Digest, ...]

    def __str__(self) -> str:
        called = f"{self.name} ({self.kind})" if self.name else f"the model ({self.kind})"
        return f"{called}, {self.where}" if self.where else called


@contextmanager
def trace_step(loop: Loop, step: int) -> Iterator[list[ModuleCall]]:
    """Yield the calls of all modules in one step of a loop, in the order in which they return.

    Args:
        loop: takes the step in the block.
        step: its number, from 1.
    """
    calls: list[ModuleCall] = []
    handles: list[Any] = []

    def begin(state: Any, batch: Any) -> None:
        if state.progress.step + 1 == step:
            for name, module in state.model.named_modules():
                handles.append(_note_calls(module, name, calls))

    def end(state: Any, result: Any) -> None:
        while handles:
            handles.pop().remove()

    parts = list(loop.parts)
    loop.parts.attach([*parts, Functions("module calls", on_batch=begin, on_step=end)])
    try:
        yield calls
    finally:
        end(None, None)
        loop.parts.attach(parts)


def _note_calls(module: nn.Module, name: str, calls: list[ModuleCall]) -> Any:
    where = find_line(type(module).forward)

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs = tuple(map(digest_value, flatten_tensors((args, kwargs))))
        outputs = tuple(map(digest_value, flatten_tensors(output)))
        calls.append(ModuleCall(name, type(module).__name__, where, inputs, outputs))

    return module.register_forward_hook(note, with_kwargs=True)


def find_line(function: Any) -> str:
    """Return "file:line" of a function of the user; "" for one of torch, or without source."""
    if str(getattr(function, "__module__", "")).partition(".")[0] == "torch":
        return ""
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (TypeError, OSError):
        return ""


def find_module(first: Sequence[ModuleCall], second: Sequence[ModuleCall]) -> str:
    """Return the module whose call is the first to differ; "" if no call does.

    If its inputs differ as well, no module returned them: they were computed by the forward of the
    module around it.
    """
    for one, other in zip_longest(first, second):
        known = one or other
        if one is None or other is None or one.name != other.name:
            return f"{known}, which only one of the runs called"
        if one.outputs != other.outputs:
            if one.inputs == other.inputs:
                return str(one)
            parent = one.name.rpartition(".")[0]
            around = next((call for call in first if call.name == parent and call != one), None)
            return str(one if around is None else around)
    return ""
