"""The evaluation of a model: which forward passes are measured, and on which data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from surestep.doctor.source.doubts import note
from surestep.doctor.source.losses import find_trained
from surestep.doctor.source.modules import (
    FORWARD_METHODS,
    find_switched,
    is_named_model,
    is_used_as_module,
    models_of,
    traverse_inputs,
)
from surestep.doctor.source.steps import StepOrder
from surestep.doctor.source.trace import Branch, Event, Trace, once_per_trace
from surestep.doctor.source.training import (
    find_actions,
    is_made_by,
    is_model,
    is_same,
    is_without_grad,
    strip,
)
from surestep.doctor.source.values import Call, Element, Instance, Operation, Value, last_name

_LOSS_NAME = re.compile(r"(^|_)(criterion|criteria|loss|loss_?fn|loss_?func)(_|\d|$)", re.I)
_LOSS_FUNCTION = re.compile(r"(_loss|cross_entropy|_with_logits|kl_div)$")
_HELD_OUT = re.compile(
    r"(^|_)x?y?_?(val|valid|validation|test|eval|dev|held_?out|holdout)(_|\d|$)", re.I
)
_USES_GRAPH = frozenset(
    "grad backward requires_grad_ set_grad_enabled enable_grad retain_grad jacobian hessian vjp "
    "jvp attribute generate".split()
)
_SAVES = ("torch.save", "torch.jit.save", "torch.jit.trace", "torch.onnx.export")
_METRICS = ("sklearn.metrics.", "torchmetrics.", "torcheval.")
_METRIC_NAME = re.compile(
    r"(^|_)(eval|evaluate|evaluator|metrics?|acc|accuracy|scores?|criterion|loss|dice|iou|miou|auc"
    r"|f1|mae|mse|rmse|psnr|ssim|bleu|wer|cer)(_|\d|$)",
    re.IGNORECASE,
)


@once_per_trace
def find_forwards(trace: Trace) -> list[tuple[Event, Call]]:
    """Return the calls of models, and not those of the layers inside a model."""
    return [
        (event, event.call)
        for event in trace.events
        if event.call is not None
        and not any(f.name == "forward" and f.owner is not None for f in event.stack)
        and _is_forward(trace, event.call)
    ]


def _is_forward(trace: Trace, call: Call) -> bool:
    """Return whether a call is of a model, or of a method of one that computes its output.

    Objects of other kinds have such methods too, so a name is not enough for the owner of one.
    """
    if call.path == "()":
        return is_named_model(call.receiver) or is_used_as_module(trace, call.receiver)
    is_method = call.path in FORWARD_METHODS
    return is_method and (is_model(call.receiver) or is_used_as_module(trace, call.receiver))


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
    note("has an output that no known loss or metric compares with targets", event, event)
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
    is_named = bool(
        _METRIC_NAME.search(value.name) or _METRIC_NAME.search(last_name(value.receiver))
    )
    if is_named and len(value.arguments) > 1 and not value.path.startswith("torch."):
        return _one_is_from(value.arguments, output)
    if is_function or value.path in (".eq", "torch.eq"):
        return _one_is_from(value.inputs, output)
    return False


def _one_is_from(values: tuple[Value, ...], output: Call) -> bool:
    """Return whether some, and not all, of these are computed from the output of a model."""
    are_from = [any(part is output for part in traverse_inputs(value, 60)) for value in values]
    return any(are_from) and not all(are_from)


def is_evaluated_after(trace: Trace, switch: Event, model: Value) -> bool:
    """Return whether the model is measured, or saved, after the switch to eval mode.

    A method of the model that switches it without gradients, such as one that draws samples, is an
    evaluation too.
    """
    if is_without_grad(switch):
        return True
    at, end, trained = trace.index(switch), len(trace.events), find_trained(trace)
    for event, output in find_forwards(trace):
        if trace.index(event) > at and is_same(output.receiver, model):
            if id(output) not in trained and is_measured(trace, event, output):
                return True
            if is_without_grad(event):
                return True
            end = trace.index(event)
            break
    return any(_saves(event, switch) for event in trace.events[at:end])


def _saves(event: Event, switch: Event) -> bool:
    """Return whether an event saves or exports a model, whenever its mode is switched."""
    is_beside = (event.loops, event.branches) == (switch.loops, switch.branches)
    is_save = event.call is not None and event.call.path in _SAVES
    return is_save and is_beside and event.stack == switch.stack


def is_trained(trace: Trace, model: Value) -> bool:
    """Return whether a step updates the model."""
    steps = [action for action in find_actions(trace) if action.is_step]
    known = [
        models
        for step in steps
        if is_made_by(step.target, "torch.optim.") and (models := models_of(step.target))
    ]
    if known:
        return any(is_same(other, model) for models in known for other in models)
    called: dict[object, set[int]] = {}  # what each call may call
    for event, output in find_forwards(trace):
        called.setdefault(event.node, set()).add(id(strip(output.receiver)))
    return bool(steps) and len(set(map(frozenset, called.values()))) == 1


def has_training(trace: Trace, event: Event) -> bool:
    """Return whether the innermost loop around an event also has a backward pass."""
    return any(
        action.kind == "backward" and event.loop in action.event.loops
        for action in find_actions(trace)
    )


def is_frozen(trace: Trace, model: Value) -> bool:
    """Return whether a trace turns off the gradients of all parameters of a model."""
    return any(
        is_same(find_switched(event, is_trained=False), model)
        and not any(_reads_element(branch, event) for branch in event.branches)
        for event in trace.events
    )


def _reads_element(branch: Branch, event: Event) -> bool:
    """Return whether a condition chooses some of the values of the loop around an event."""
    iterated = None if event.loop is None else event.loop.iterated
    return branch.test is not None and any(
        isinstance(part, Element) and part.of is iterated for part in traverse_inputs(branch.test)
    )


def uses_graph(trace: Trace, event: Event) -> bool:
    """Return whether gradients may be used in the loop around an event, or be off by a call."""
    is_set = any(last_name(context) == "set_grad_enabled" for context in event.contexts)
    if is_set or has_training(trace, event):
        return True
    for other, call in trace.calls:
        is_global = call.name in ("set_grad_enabled", "requires_grad_")
        if call.name in _USES_GRAPH and (is_global or event.loop in other.loops):
            note("may use gradients, or turn them off", other, event)
            return True
    return False


def name_unknown_caller(trace: Trace, model: Value) -> str:
    """Return the function whose caller may turn gradients off; "" if the trace shows that.

    A function that trains a model, or makes it, is not called without gradients.
    """
    is_trained = any(action.kind == "backward" for action in find_actions(trace))
    is_made = isinstance(model, (Call, Instance)) and is_made_in(trace, model)
    return "" if trace.entry is None or is_trained or is_made else trace.entry.name


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


def describe_caller(event: Event) -> str:
    """Return where gradients could be turned off, if one function calls another."""
    if len(event.stack) < 2:
        return ""
    caller, called = (function.name for function in event.stack[-2:])
    return f", neither in `{called}` nor in `{caller}`, which calls it"
