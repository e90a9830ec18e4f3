"""Whether a gradient can flow from a loss to the parameters of a model."""

from __future__ import annotations

import ast
import re

from surestep.doctor.source.trace import Event, Trace
from surestep.doctor.source.training import is_made_by, is_without_grad, options_of, strip
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Element,
    Item,
    Operation,
    Unknown,
    Value,
    last_name,
    walk,
)

_BREAKS = frozenset("detach item numpy tolist argmax argmin".split())
_COPIES = ("torch.tensor", "torch.from_numpy", "numpy.array", "numpy.asarray", "float", "int")
_RANDOM = frozenset(
    "rand randn randint randperm zeros ones full empty arange linspace eye normal".split()
)
_TARGET = re.compile(r"^(y|t|gt|y_true|targets?|labels?|ground_truth|tgt)$")
_DATA = re.compile(r"(^|_)(loader|dataloader|dl|iter|batches|dataset|data)s?$", re.IGNORECASE)


class GradientPaths:
    """The calls of models in a trace, and which of them build a graph.

    Args:
        trace: of a script or a function.
    """

    def __init__(self, trace: Trace) -> None:
        self._events = {id(event.value): event for event in trace.events if event.kind == "call"}

    def find_breaks(self, loss: Value | None) -> list[Value]:
        """Return what detaches a loss; empty if a gradient may reach a parameter."""
        return self._breaks_of(loss, 0) or []

    def _breaks_of(self, value: Value | None, depth: int) -> list[Value] | None:
        """Return what detaches all paths; None if one path may have a gradient."""
        found: list[Value] = []
        for option in options_of(value):
            breaks = None if depth > 40 else self._breaks_of_one(option, depth + 1)
            if breaks is None:
                return None
            found.extend(breaks)
        return found

    def _breaks_of_one(self, value: Value, depth: int) -> list[Value] | None:
        match value:
            case Constant():
                return []
            case Attribute(name="data"):
                return self._detached(value)
            case Attribute(name="shape" | "dtype" | "device"):
                return []
            case Attribute(base=base, name="loss" | "logits" | "T" | "values" | "mT"):
                return self._breaks_of(base, depth)
            case Item(base=base):
                return self._breaks_of(base, depth)
            case Element(of=of):
                is_data = is_made_by(of, "torch.utils.data.DataLoader") or bool(
                    _DATA.search(last_name(of))
                )
                return [] if is_data else self._breaks_of(of, depth)
            case Collection(elements=elements):
                is_open = not value.is_complete and isinstance(value.node, (ast.List, ast.Dict))
                if is_open or not elements:  # what was added elsewhere is not known
                    return None
                return self._breaks_of_all(tuple(elements), depth)
            case Operation(operands=operands):
                return self._breaks_of_all(operands, depth)
            case Unknown(name=name):
                return [] if _TARGET.match(name) else None
            case Call():
                return self._breaks_of_call(value, depth)
        return None

    def _breaks_of_all(self, values: tuple[Value, ...], depth: int) -> list[Value] | None:
        found: list[Value] = []
        for option in values:
            breaks = self._breaks_of(option, depth)
            if breaks is None:
                return None
            found.extend(breaks)
        return found

    def _breaks_of_call(self, call: Call, depth: int) -> list[Value] | None:
        if call.has_unknown_arguments:
            return None
        if (call.is_method and call.name in _BREAKS) or call.path in _COPIES:
            return self._detached(call)
        given = call.arguments
        if call.path == "()":
            event = self._events.get(id(call))
            if event is not None and is_certainly_without_grad(event):
                return [call]
            return self._breaks_of_all(given, depth) if is_loss_module(call.receiver) else None
        if call.is_method:
            return None if call.receiver is None else self._breaks_of_all(call.inputs, depth)
        if not call.path.startswith("torch.") or call.path.startswith(
            ("torch.nn.Parameter", "torch.nn.parameter", "torch.autograd", "torch.func")
        ):
            return None
        if call.name in _RANDOM:
            return None if "requires_grad" in call.keywords else []
        if call.name in _BREAKS:
            return self._detached(call)
        return self._breaks_of_all(given, depth)

    def _detached(self, value: Value) -> list[Value]:
        """Return a value that detaches the output of a model."""
        return [value] if any(map(is_forward, walk(value))) else []


def is_forward(value: Value) -> bool:
    """Return whether a value is the output of something called that is not a loss."""
    return isinstance(value, Call) and value.path == "()" and not is_loss_module(value.receiver)


def is_loss_module(value: Value | None) -> bool:
    """Return whether a value is a loss of torch."""
    made = strip(value)
    return isinstance(made, Call) and made.path.startswith("torch.nn.") and "Loss" in made.name


def is_certainly_without_grad(event: Event) -> bool:
    """Return whether an event builds no graph: inside `no_grad`, without `enable_grad`."""
    names = {last_name(context) for context in event.contexts}
    return is_without_grad(event) and not names & {"enable_grad", "set_grad_enabled"}
