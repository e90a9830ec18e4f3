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
    Either,
    Element,
    Item,
    Operation,
    Unknown,
    Value,
    last_name,
    walk,
)
from surestep.doctor.source.wrapping import MOVES

_BREAKS = frozenset("detach item numpy tolist argmax argmin".split())
_COPIES = ("torch.tensor", "torch.from_numpy", "numpy.array", "numpy.asarray", "float", "int")
_RANDOM = frozenset(
    "rand randn randint randperm zeros ones full empty arange linspace eye normal".split()
)
_MEANS = frozenset(
    "cross_entropy mse_loss l1_loss smooth_l1_loss huber_loss nll_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits mean".split()
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
        if is_new_leaf(value):
            return None
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


def is_new_leaf(value: Value | None) -> bool:
    """Return whether a value may be a new tensor of which a gradient is computed.

    `torch.zeros(1).requires_grad_()` is one. That of the output of a model is not: it hides that
    the output was detached.
    """
    match value:
        case Either(options=options):
            return any(map(is_new_leaf, options))
        case Call(path=".requires_grad_"):
            given = value.argument(0, "requires_grad")
            is_on = not (isinstance(given, Constant) and given.value is False)
            return is_on and not any(map(is_forward, walk(value)))
        case Call(receiver=inner) if value.is_method and value.name in MOVES:
            return is_new_leaf(inner)
    return False


def is_forward(value: Value) -> bool:
    """Return whether a value is the output of something called that is not a loss."""
    return isinstance(value, Call) and value.path == "()" and not is_loss_module(value.receiver)


def is_loss_module(value: Value | None) -> bool:
    """Return whether a value is a loss of torch."""
    made = strip(value)
    return isinstance(made, Call) and made.path.startswith("torch.nn.") and "Loss" in made.name


def is_mean_or_of_model(loss: Value | None) -> bool:
    """Return whether a loss is a mean, or a model returns it beside its output."""
    is_part = isinstance(loss, Item | Attribute) and is_forward(loss.base)
    return is_part or is_mean(loss)


def is_mean(loss: Value | None) -> bool:
    """Return whether a loss is the mean over its batch."""
    return bool(options_of(loss)) and all(map(_is_one_mean, options_of(loss)))


def _is_one_mean(loss: Value) -> bool:
    if isinstance(loss, Attribute) and loss.name == "loss":  # of a model of transformers
        return is_forward(loss.base)
    if not isinstance(loss, Call):
        return False
    made = loss.receiver if loss.path == "()" else loss
    if not isinstance(made, Call) or made.has_unknown_arguments:
        return False
    is_loss = is_loss_module(made) and not made.path.startswith("torch.nn.functional.")
    if not is_loss and made.name not in _MEANS:
        return False
    reduction = made.keywords.get("reduction")
    return reduction is None or (isinstance(reduction, Constant) and reduction.value == "mean")


def is_differentiated(trace: Trace, event: Event) -> bool:
    """Return whether a backward pass uses the sum or the list, or detaches it."""
    kept = event.node if event.call is None else event.call.receiver
    return any(
        part is kept or part.node is kept or (event.kind == "store" and part is event.value)
        for _, call in trace.calls
        if call.name in ("backward", "manual_backward", "grad", "detach")
        for value in call.inputs
        for part in walk(value)
    )


def is_certainly_without_grad(event: Event) -> bool:
    """Return whether an event builds no graph: inside `no_grad`, without `enable_grad`."""
    names = {last_name(context) for context in event.contexts}
    return is_without_grad(event) and not names & {"enable_grad", "set_grad_enabled"}
