"""The evaluation of a model: which forward passes are measured, and on which data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from surestep.doctor.source.modules import is_named_model, traverse_inputs
from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.training import find_actions
from surestep.doctor.source.values import Call, Operation, Value, last_name

_LOSS_NAME = re.compile(r"(^|_)(criterion|criteria|loss|loss_?fn|loss_?func)(_|\d|$)", re.I)
_LOSS_FUNCTION = re.compile(r"(_loss|cross_entropy|_with_logits|kl_div)$")
_HELD_OUT = re.compile(r"(^|_)x?y?_?(val|valid|validation|test|eval|dev|holdout)(_|\d|$)", re.I)
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


def is_held_out(call: Call) -> bool:
    """Return whether the arguments of a call name validation or test data."""
    nodes: list[ast.AST] = [*call.node.args] if isinstance(call.node, ast.Call) else []
    for arg in call.args:
        nodes.extend(part.node for part in traverse_inputs(arg, 60) if part.node is not None)
    return any(
        _HELD_OUT.search(getattr(part, "id", getattr(part, "attr", "")))
        for node in nodes
        if isinstance(node, ast.expr)
        for part in ast.walk(node)
    )
