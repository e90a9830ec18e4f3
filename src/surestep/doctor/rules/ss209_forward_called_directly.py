"""`model.forward(x)` is called instead of `model(x)`, which skips the hooks of the model.

DistributedDataParallel averages gradients only if the model is called, and FSDP gathers its
parameters there. Compiled modules, profilers and forward hooks also rely on the call. On one device
without hooks both give the same result, so the mistake shows only later.

Ignore it if the hooks are skipped on purpose.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.forward

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model.forward(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

import ast
from collections.abc import Iterator

from surestep.doctor.edits import remove_attribute
from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import is_model, options_of
from surestep.doctor.source.values import Instance, Value

SEVERITY = "warning"
FIXABLE = True
FIX = "Call the model itself: model(x)."


def check(program: Program) -> Iterator[Problem]:
    """Find calls of `forward` on names that only ever hold models."""
    values = _find_values(program)
    inside = {
        id(node)
        for cls in program.classes
        for method in cls.definition.body
        if getattr(method, "name", "") in ("forward", "__call__")
        for node in ast.walk(method)
    }
    for node in program.file.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        receiver = node.func.value
        if node.func.attr != "forward" or id(node) in inside:
            continue
        held = values.get(ast.unparse(receiver), [])
        if held and all(map(is_model, held)):
            text = ast.unparse(receiver)
            message = f"`{text}.forward(...)` skips the hooks of `{text}`."
            edit = None
            if not any(map(_has_own_call, held)):
                edit = remove_attribute(program.file, node.func)
            yield at_node(node, program.file, message, edits=() if edit is None else (edit,))


def _has_own_call(model: Value) -> bool:
    return any(
        isinstance(option, Instance) and option.cls.find("__call__") is not None
        for option in options_of(model)
    )


def _find_values(program: Program) -> dict[str, list[Value]]:
    """Return what is assigned to each name and attribute of the file."""
    values: dict[str, list[Value]] = {}
    for event in program.events:
        if (
            event.kind == "store"
            and event.target is not None
            and event.file is program.file
            and isinstance(event.target, (ast.Name, ast.Attribute))
        ):
            values.setdefault(ast.unparse(event.target), []).append(event.value)
    return values
