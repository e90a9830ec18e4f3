"""The evaluation of a model: which forward passes are measured, and on which data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from surestep.doctor.source.losses import find_trained
from surestep.doctor.source.modules import is_named_model, traverse_inputs
from surestep.doctor.source.steps import StepOrder
from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.training import find_actions, strip
from surestep.doctor.source.values import Call, Element, Operation, Value, last_name

_LOSS_NAME = re.compile(r"(^|_)(criterion|criteria|loss|loss_?fn|loss_?func)(_|\d|$)", re.I)
_LOSS_FUNCTION = re.compile(r"(_loss|cross_entropy|_with_logits|kl_div)$")
_HELD_OUT = re.compile(
    r"(^|_)x?y?_?(val|valid|validation|test|eval|dev|held_?out|holdout)(_|\d|$)", re.I
)
_USES_GRAPH = frozenset(
    "grad backward requires_grad_ set_grad_enabled enable_grad retain_grad jacobian hessian vjp "
    "jvp attribute generate".split()
)
_METRICS = ("sklearn.metrics.", "torchmetrics.", "torcheval.")


@once_per_trace
def find_forwards(trace: Trace) -> list[tuple[Event, Call]]:
    """Return the calls of models, and not those of the layers inside a model."""
    return [
        (event, event.call)
        for event in trace.events
        if event.call is not None
        and event.call.path == "()"
        and not any(f.name == "forward" and f.owner is not None for f in event.stack)
        and is_named_model(event.call.receiver)
    ]


def is_measured(trace: Trace, event: Event, output: Call) -> bool:
    """Return whether a loss or a metric is computed from the output of a model.

    Args:
        trace: of the script.
        event: the forward pass.
        output: its value.
    """
    start = trace.index(event) + 1
    for later in trace.events[start : start + 200]:
        if event.loops != later.loops[: len(event.loops)]:
            break
        if any(_measures(value, output) for value in _expand(later.value)):
            return True
    return False


def _expand(value: Value) -> Iterator[Value]:
    """Yield a value and the operations in it; calls have their own events."""
    yield value
    for part in value.inputs:
        if isinstance(part, Operation):
            yield from _expand(part)


def _measures(value: Value, output: Call) -> bool:
    if isinstance(value, Operation) and value.operator == "==":
        return _one_is_from(value.operands, output)
    if not isinstance(value, Call):
        return False
    if value.path == "()":
        made = value.receiver
        is_loss = isinstance(made, Call) and made.path.startswith("torch.nn.")
        is_loss = is_loss and last_name(made).endswith("Loss")
        is_metric = isinstance(made, Call) and made.path.startswith(_METRICS)
        if is_loss or is_metric or _LOSS_NAME.search(last_name(made)):
            return _one_is_from(value.args, output)
    is_function = value.path.startswith(_METRICS) or (
        value.path.startswith("torch.") and bool(_LOSS_FUNCTION.search(value.name))
    )
    if is_function or value.path in (".eq", "torch.eq"):
        return _one_is_from(value.inputs, output)
    return False


def _one_is_from(values: tuple[Value, ...], output: Call) -> bool:
    """Return whether some, and not all, of these are computed from the output of a model."""
    are_from = [any(part is output for part in traverse_inputs(value, 60)) for value in values]
    return any(are_from) and not all(are_from)


def has_training(trace: Trace, event: Event) -> bool:
    """Return whether the innermost loop around an event also has a backward pass."""
    return any(
        action.kind == "backward" and event.loop in action.event.loops
        for action in find_actions(trace)
    )


def uses_graph(trace: Trace, event: Event) -> bool:
    """Return whether gradients may be used in the loop around an event, or be off by a call."""
    is_set = any(last_name(context) == "set_grad_enabled" for context in event.contexts)
    if is_set or has_training(trace, event):
        return True
    return any(
        call.name in _USES_GRAPH
        and (event.loop in other.loops or call.name in ("set_grad_enabled", "requires_grad_"))
        for other, call in trace.calls
    )


def is_made_in(trace: Trace, model: Value) -> bool:
    """Return whether a trace makes a model, or is of a whole script: nothing else switched it."""
    made = (event.value for event in trace.events)
    return trace.entry is None or any(model in (value, strip(value)) for value in made)


def is_validation(trace: Trace, event: Event, output: Call) -> bool:
    """Return whether a forward pass is certainly of a loop over held-out batches only.

    The loop trains nothing, and nothing trains on its outputs later. It needs neither eval mode nor
    `torch.no_grad()` to be known by.

    Args:
        trace: of the script.
        event: the forward pass.
        output: its value.
    """
    model = strip(output.receiver)
    given = [part for arg in output.args for part in traverse_inputs(arg, 60)]
    return (
        any(isinstance(part, Element) for part in given)
        and is_held_out(trace, output)
        and model is not None
        and is_made_in(trace, model)
        and not uses_graph(trace, event)
        and id(output) not in find_trained(trace)
        and StepOrder(trace).is_clear_inside(event)
    )


def is_held_out(trace: Trace, call: Call) -> bool:
    """Return whether validation or test data are given to a call, by the names of variables."""
    nodes: list[ast.AST] = [*call.node.args] if isinstance(call.node, ast.Call) else []
    parts = {part for arg in call.args for part in traverse_inputs(arg, 60)}
    nodes += [part.node for part in parts if isinstance(part.node, ast.expr)]
    stores = (event for event in trace.events if event.value in parts)
    nodes += [event.target for event in stores if isinstance(event.target, ast.Name)]
    return any(
        _HELD_OUT.search(getattr(part, "id", getattr(part, "attr", "")))
        for node in nodes
        for part in ast.walk(node)
    )
