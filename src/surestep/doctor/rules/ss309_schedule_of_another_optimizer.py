"""A schedule is stepped, but nothing steps its optimizer: another one trains.

The schedule changes the learning rate of an optimizer that makes no step. The one that trains keeps
its first learning rate for the whole run. This happens when an optimizer is created again after the
schedule, or when a script has two and the schedule gets the wrong one. Nothing fails.

It is reported only if the source shows each use of the optimizer of the schedule, and if no
schedule is made for the one that trains.

Ignore it if the optimizer that trains is meant to keep its learning rate.

Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.schedules import TORCH, creations
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    Action,
    describe,
    find_actions,
    is_made_by,
    is_scaler,
    is_scheduler,
    may_be_same,
    options_of,
)
from surestep.doctor.source.values import Call, Value, walk

SEVERITY = "error"
FIX = "Create the schedule for the optimizer that is stepped, after that optimizer."

# What neither steps an optimizer nor gives its learning rate to anything that trains.
_HARMLESS = frozenset("zero_grad state_dict load_state_dict get_last_lr".split())
_OUTPUTS = ("print", "torch.save")


def check(program: Program) -> Iterator[Problem]:
    """Find schedules that are stepped in a loop which steps another optimizer only."""
    reported: list[Value] = []
    for trace in program.traces:
        for action in find_actions(trace):
            made = list(creations(action.target))
            if action.kind != "schedule" or len(made) != 1 or made[0] in reported:
                continue
            step = _find_other_step(program, trace, action, made[0])
            if step is None or made[0].node is None or made[0].file is None:
                continue
            reported.append(made[0])
            yield at_node(
                made[0].node,
                made[0].file,
                f"`{describe(made[0])}` changes the learning rate of an optimizer that nothing "
                f"steps: `{step.event.text}` steps another one.",
                {"step_line": step.event.line},
            )


def _find_other_step(
    program: Program, trace: Trace, action: Action, schedule: Call
) -> Action | None:
    """Return a step that has no schedule, if the optimizer of a schedule is certainly not used."""
    own = options_of(schedule.argument(0, "optimizer"))
    if not is_made_by(schedule, TORCH) or len(own) != 1:
        return None
    optimizer = own[0]
    if not isinstance(optimizer, Call) or not _has_own_groups(optimizer):
        return None
    if _is_used_elsewhere(program, optimizer):
        return None
    for step in find_actions(trace):
        # Loops of the same pass, so the schedule was meant for what this step does.
        is_near = step.is_step and bool(action.event.loops[:1])
        is_near = is_near and step.event.loops[:1] == action.event.loops[:1]
        if is_near and _is_made(step.target) and not _may_have_schedule(program, step.target):
            return step
    return None


def _is_made(optimizer: Value | None) -> bool:
    return is_made_by(optimizer, "torch.optim.") and not is_scheduler(optimizer)


def _has_own_groups(optimizer: Call) -> bool:
    """Return whether an optimizer certainly shares no learning rate with another one.

    Two optimizers that are given the same dicts keep them, and a tensor is changed in place.
    """
    parameters, lr = optimizer.argument(0, "params"), optimizer.argument(1, "lr")
    is_plain = isinstance(parameters, Call) and parameters.path == ".parameters"
    is_tensor = lr is not None and any(
        isinstance(part, Call) and part.path.startswith("torch.") for part in walk(lr)
    )
    return _is_made(optimizer) and is_plain and not is_tensor


def _may_have_schedule(program: Program, optimizer: Value | None) -> bool:
    calls = [event.call for event in program.events if event.call is not None]
    return any(
        may_be_same(call.argument(0, "optimizer"), optimizer)
        for call in calls
        if call.path.startswith(TORCH)
    )


def _is_used_elsewhere(program: Program, optimizer: Call) -> bool:
    """Return whether anything may use an optimizer, or set learning rates by hand."""
    if any(_may_use(event, optimizer) or _sets_rate(event) for event in program.events):
        return True
    stores = [e for e in program.events if e.kind == "store" and _is_from(e.value, optimizer)]
    names = {e.target.id for e in stores if isinstance(e.target, ast.Name)}
    # A lambda is not followed unless it is called, and others can read what a class holds.
    lambdas = (
        node for file in program.files for node in file.nodes if isinstance(node, ast.Lambda)
    )
    is_in_lambda = any(
        isinstance(node, ast.Name) and node.id in names
        for made in lambdas
        for node in ast.walk(made)
    )
    in_classes = {id(node) for cls in program.classes for node in cls.definition.body}
    return is_in_lambda or any(id(event.node) in in_classes for event in stores)


def _sets_rate(event: Event) -> bool:
    """Return whether an event assigns to `group["lr"]`."""
    index = event.target.slice if isinstance(event.target, ast.Subscript) else None
    return isinstance(index, ast.Constant) and index.value == "lr"


def _may_use(event: Event, optimizer: Call) -> bool:
    """Return whether an event steps an optimizer, reads its learning rate, or hands it on."""
    call = event.call
    if call is not None and call.name == "step" and _may_step(call, optimizer):
        return True
    values = (event.value, event.base) if call is None else call.inputs
    if not any(_is_from(value, optimizer) for value in values):
        return False
    if call is None:
        # In the next pass of a loop, another name may be that of the optimizer.
        is_name = event.kind == "store" and isinstance(event.target, ast.Name)
        is_new = getattr(event.node, "value", None) is event.value.node
        return not (is_name and _is_part(event.value, optimizer) and (is_new or not event.loops))
    if call.path.startswith(TORCH) or call.path in _OUTPUTS:
        return False
    is_harmless = call.name in _HARMLESS or (call.name == "step" and is_scheduler(call.receiver))
    is_given = any(_is_from(value, optimizer) for value in call.arguments)
    return is_given or not (is_harmless and _is_part(call.receiver, optimizer))


def _may_step(call: Call, optimizer: Call) -> bool:
    stepped = call.argument(0, "optimizer") if is_scaler(call.receiver) else call.receiver
    options = [] if is_scheduler(stepped) else options_of(stepped)
    # The same expression may make it in another trace, or in another call of a function.
    return any(may_be_same(v, optimizer) or v.node is optimizer.node for v in options)


def _is_from(value: Value | None, optimizer: Call) -> bool:
    """Return whether a value has an optimizer in it, not counting the saved state of a schedule."""
    parts = () if value is None else walk(value, stop_at=_is_saved_schedule)
    return any(part is optimizer for part in parts)


def _is_saved_schedule(value: Value) -> bool:
    return (
        isinstance(value, Call)
        and value.path == ".state_dict"
        and is_made_by(value.receiver, TORCH)
    )


def _is_part(value: Value | None, optimizer: Call) -> bool:
    """Return whether a value is an optimizer, or a schedule made for it."""
    options = options_of(value)
    return all(option is optimizer or is_made_by(option, TORCH) for option in options)
