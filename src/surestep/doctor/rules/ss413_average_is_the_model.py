"""The average of a model, or its target network, is the model itself, not a copy.

`target = model` makes no copy. An average of its weights is then the model itself, and the target
network of reinforcement learning follows each step: the update of the one from the other changes
nothing. Nothing fails, as both have the same shapes.

Ignore it if the state is loaded into the same module on purpose.

Source: https://docs.python.org/3/library/copy.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    target = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x = torch.randn(8, 4)
        loss = (model(x) - target(x + 1).detach()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    target.load_state_dict(model.state_dict())

Right:

    import copy

    import torch

    model = torch.nn.Linear(4, 1)
    target = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x = torch.randn(8, 4)
        loss = (model(x) - target(x + 1).detach()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    target.load_state_dict(model.state_dict())
"""

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import is_model, is_same
from surestep.doctor.source.values import Call, Value

SEVERITY = "error"
FIX = "Make the second model with copy.deepcopy(model)."
_PARAMETERS = (".parameters", ".named_parameters", ".buffers", ".named_buffers")


def check(program: Program) -> Iterator[Problem]:
    """Find updates of a model from another name of the same model."""
    reported = set()
    for trace in program.traces:
        for event, call in trace.calls:
            pair = _find_pair(call)
            if event.node in reported or pair is None or not _are_one(*pair):
                continue
            names = _name_both(event)
            if len(set(names)) == 2:
                reported.add(event.node)
                yield at_event(
                    event,
                    f"`{names[0]}` and `{names[1]}` are the same module: neither is a "
                    "copy that this updates from the other.",
                )


def _find_pair(call: Call) -> tuple[Call, Call] | None:
    """Return the calls of two models of which one is updated from the other."""
    match call:
        case Call(path=".load_state_dict", args=(Call(path=".state_dict") as state, *_)):
            return call, state
        case Call(path="zip", args=(Call(path=a) as first, Call(path=b) as second)):
            return (first, second) if a == b and a in _PARAMETERS else None
    return None


def _are_one(first: Call, second: Call) -> bool:
    models: tuple[Value | None, ...] = (first.receiver, second.receiver)
    return is_same(*models) and all(map(is_model, models))


def _name_both(event: Event) -> list[str]:
    """Return how the call writes its two models; empty if it does not name them."""
    node = event.node
    if not isinstance(node, ast.Call):
        return []
    calls = node.args[:2] if isinstance(node.func, ast.Name) else [node, *node.args[:1]]
    functions = [call.func for call in calls if isinstance(call, ast.Call)]
    return [ast.unparse(f.value) for f in functions if isinstance(f, ast.Attribute)]
