"""A state is loaded into an object that is not the one that trains.

After `load_state_dict`, a new model or optimizer is assigned to the same name, so what was loaded
is lost. Or it was loaded into a second model that nothing uses. Or a resume uses `strict=False` and
ignores what `load_state_dict` returns, so weights with other names are skipped and keep their
random values. The run starts from scratch and looks like a resumed one.

Ignore it if the second object is meant to start fresh. `strict=False` is reported only in a resume,
because pretrained weights often lack a head.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html

Wrong:

    import copy
    import io

    import torch


    def resume(model, file):
        state = torch.load(file, map_location="cpu")
        copy.deepcopy(model).load_state_dict(state)


    file = io.BytesIO()
    torch.save(torch.nn.Linear(4, 1).state_dict(), file)
    file.seek(0)
    model = torch.nn.Linear(4, 1)
    resume(model, file)
    print(model(torch.randn(8, 4)).mean())

Right:

    import os

    import torch

    student, teacher = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    if os.path.exists("missing.pt"):
        teacher.load_state_dict(torch.load("missing.pt", map_location="cpu"))
    teacher.eval()
    optimizer = torch.optim.Adam(student.parameters())
    for _ in range(3):
        x = torch.randn(8, 4)
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        (student(x) - target).pow(2).mean().backward()
        optimizer.step()
"""

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.checkpoints import entry_of, find_restores
from surestep.doctor.source.modules import models_of
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import find_actions, is_model, is_optimizer, options_of
from surestep.doctor.source.values import Call, Constant, Instance, Value, is_made_from, walk

SEVERITY = "warning"
FIX = "Create the model and the optimizer first, and then load into the objects that train."
_PARTIAL = re.compile(r"lora|peft|adapter|requires_grad|missing_keys|unexpected_keys")
_HARMLESS = frozenset("load_state_dict to cuda cpu train eval print".split())


def check(program: Program) -> Iterator[Problem]:
    """Find states that are loaded and then lost, and resumes that may load nothing."""
    for trace in program.traces:
        restores = find_restores(trace)
        for event, receiver, state in restores:
            lost = _find_new_object(trace, event, receiver)
            if lost is not None and lost.target is not None:
                yield at_event(
                    lost,
                    f"`{ast.unparse(lost.target)}` is a new object here: the state that "
                    f"`{event.text}` loaded is lost.",
                )
            elif _is_temporary(event):
                yield at_event(
                    event,
                    f"`{event.text}` loads into a copy that nothing keeps.",
                )
            elif _is_unused(event, receiver) and _is_other_trained(trace, event, receiver):
                yield at_event(
                    event,
                    f"`{event.text}` loads into a model that nothing uses: another one "
                    "is trained, from other weights.",
                )
            elif _skips_names(event) and is_model(receiver) and _is_resume(restores, state):
                yield at_event(
                    event,
                    f"`{event.text}` skips all names that differ, and nothing reads "
                    "which: the resumed model may keep random weights.",
                )


def _is_temporary(event: Event) -> bool:
    """Return whether a statement loads into a copy that it makes."""
    function = getattr(event.node, "func", None)
    made = getattr(function, "value", None)
    value = None if event.call is None else event.call.receiver
    is_copy = isinstance(value, Call) and value.path == "copy.deepcopy"
    return is_copy and isinstance(made, ast.Call) and _is_statement(event)


def _is_statement(event: Event) -> bool:
    """Return whether nothing reads what a call returns."""
    return any(n.value is event.node for n in event.file.nodes if isinstance(n, ast.Expr))


def _is_unused(event: Event, receiver: Value) -> bool:
    """Return whether nothing reads the model into which a file is loaded."""
    expression = getattr(getattr(event.node, "func", None), "value", None)
    state = None if event.call is None else event.call.argument(0, "state_dict")
    is_of_file = state is not None and any(
        isinstance(part, Call) and part.path == "torch.load" for part in walk(state)
    )
    if not is_of_file or not is_model(receiver) or not _is_statement(event):
        return False
    made = options_of(receiver)[0].node
    if isinstance(expression, ast.Call):  # `Net().load_state_dict(...)`
        return any(node is made for node in ast.walk(expression))
    scope = event.stack[-1].definition if event.stack else event.file.tree
    nodes = list(ast.walk(scope))
    name = expression.id if isinstance(expression, ast.Name) else ""
    if any(isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names for n in nodes):
        return False
    reads = {id(n) for n in nodes if _is_name(n, name) and isinstance(n.ctx, ast.Load)}
    stores = [n for n in nodes if isinstance(n, ast.Assign) and _is_name(n.targets[0], name)]
    is_own = len(stores) == 1 and len(stores[0].targets) == 1
    is_made_here = is_own and any(node is made for node in ast.walk(stores[0].value))
    return is_made_here and reads <= set(_find_harmless_reads(nodes))


def _is_name(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name


def _find_harmless_reads(nodes: list[ast.AST]) -> Iterator[int]:
    """Yield the names in statements that only load into an object, or move it."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() as read, attr=name))):
                if name in _HARMLESS:
                    yield id(read)


def _is_other_trained(trace: Trace, event: Event, receiver: Value) -> bool:
    """Return whether steps that follow train another model of the same class."""
    old = options_of(receiver)
    later = [a for a in find_actions(trace) if trace.index(a.event) > trace.index(event)]
    models = [m for a in later if a.kind == "step" for m in models_of(a.target)]
    others = [options_of(model) for model in models]
    return len(old) == 1 and any(len(other) == 1 and _is_new(other[0], old[0]) for other in others)


def _find_new_object(trace: Trace, loaded: Event, receiver: Value) -> Event | None:
    """Return the assignment that replaces an object after its state was loaded."""
    options = options_of(receiver)
    expression = getattr(getattr(loaded.node, "func", None), "value", None)
    if len(options) != 1 or not isinstance(expression, (ast.Name, ast.Attribute)):
        return None
    text, old = ast.unparse(expression), options[0]
    for event in trace.events[trace.index(loaded) + 1 :]:
        if event.kind == "store" and event.target is not None:
            is_same_name = ast.unparse(event.target) == text and event.stack == loaded.stack
            if is_same_name:
                is_new = _is_new(event.value, old) and set(event.branches) <= set(loaded.branches)
                return event if is_new and event.loops == loaded.loops else None
        if _uses(event, old):
            return None
    return None


def _is_new(value: Value, old: Value) -> bool:
    """Return whether a value is a different object of the same class."""
    if is_made_from(value, old):
        return False
    match value, old:
        case Instance(), Instance():
            return value.cls is old.cls and value.cls.is_module
        case Call(), Call():
            return value.path == old.path and (is_optimizer(old) or is_model(old))
    return False


def _uses(event: Event, value: Value) -> bool:
    """Return whether an event uses the object for more than moving it."""
    call = event.call
    if call is None:
        return event.kind != "test" and is_made_from(event.value, value)
    if call.receiver is value and call.name in _HARMLESS:
        return False
    return any(is_made_from(given, value) for given in call.inputs)


def _skips_names(event: Event) -> bool:
    """Return whether a call has strict=False, and nothing uses what it returns."""
    call = event.call
    strict = None if call is None else call.argument(1, "strict")
    if not isinstance(strict, Constant) or strict.value is not False:
        return False
    return _is_statement(event) and not _PARTIAL.search(event.file.text)


def _is_resume(restores: list[tuple[Event, Value, Value]], state: Value) -> bool:
    """Return whether an optimizer is restored from the file of the same state."""
    own = entry_of(state)
    others = [entry_of(other) for _, receiver, other in restores if is_optimizer(receiver)]
    return own is not None and any(other is not None and other[0] is own[0] for other in others)
