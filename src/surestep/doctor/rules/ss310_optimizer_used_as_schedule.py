"""What is called a scheduler is an optimizer: no learning rate changes.

An optimizer and a schedule both have `step()`. If a function returns the wrong one of them, or two
results are mixed up, nothing fails: the learning rate stays constant, and each `scheduler.step()`
updates the parameters a second time with gradients that were used already.

Ignore it if the second optimizer is meant, and rename it.

Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = optimizer
    for _ in range(5):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(5):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import (
    find_actions,
    is_made_by,
    is_optimizer,
    is_scheduler_name,
    strip,
)

SEVERITY = "error"
FIX = "Make a schedule of torch.optim.lr_scheduler for the optimizer."


def check(program: Program) -> Iterator[Problem]:
    """Find steps of something that is called a scheduler and was made by an optimizer."""
    reported = set()
    for trace in program.traces:
        for action in find_actions(trace):
            event = action.event
            name = _name_called(event.node)
            if not is_scheduler_name(name) or event.node in reported:
                continue
            if is_optimizer(action.target) and is_made_by(action.target, "torch.optim."):
                reported.add(event.node)
                line = getattr(strip(action.target), "line", None)
                yield at_event(
                    event,
                    f"`{name}` is an optimizer: `{event.text}` changes no learning rate, and steps "
                    "the parameters.",
                    made_line=line,
                )


def _name_called(node: ast.AST) -> str:
    """Return the name of the object whose `step` is called."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    owner = node.func.value
    is_step = node.func.attr == "step"
    return getattr(owner, "id", getattr(owner, "attr", "")) if is_step else ""
