"""LBFGS is stepped without a closure that computes the loss and its gradients.

It evaluates the loss several times in each step, so it needs a function that zeroes the gradients,
computes the loss, calls `backward()` and returns the loss. Without a function, `step()` raises an
error. With one that lacks `backward()`, it runs: each evaluation sees the same gradients, or none,
and the search ends at once.

Ignore it if the closure calls code that computes the gradients and that the source does not show.

Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.LBFGS.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()  # type: ignore[call-arg]

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    x, y = torch.randn(8, 4), torch.randn(8, 1)


    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss


    for _ in range(5):
        optimizer.step(closure)
"""

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, find_actions, is_made_by, options_of
from surestep.doctor.source.values import Call, Function, Operation, Value

SEVERITY = "error"
FIX = "Pass a function to step() that calls zero_grad() and backward() and returns the loss."

_GRADIENTS = ("backward", "grad", "value_and_grad", "manual_backward")


def check(program: Program) -> Iterator[Problem]:
    """Find steps of LBFGS without a closure, and closures that compute no gradients."""
    for trace in program.traces:
        for action in find_actions(trace):
            call = action.event.call
            if call is None or not is_made_by(action.target, "torch.optim.LBFGS"):
                continue
            if action.kind == "scaler_step":
                yield at_event(
                    action.event, f"`{describe(call)}` passes no closure, which LBFGS needs."
                )
            if action.kind != "step" or call.has_unknown_arguments:
                continue
            closure = call.argument(0, "closure")
            if closure is None:
                yield at_event(action.event, f"`{describe(call)}` has no closure.")
            elif _is_loss(closure):
                yield at_event(
                    action.event,
                    f"`{describe(call)}` gets a value, but LBFGS needs a function that computes "
                    "it.",
                )
            elif _is_without_gradients(closure, trace.events):
                yield at_event(
                    action.event,
                    f"`{describe(closure)}` computes a loss without its gradients.",
                )


def _is_loss(value: Value) -> bool:
    """Return whether a value is certainly a number or a tensor, not a function."""
    return all(
        isinstance(option, Operation)
        or (isinstance(option, Call) and option.path.startswith("torch.nn.functional."))
        or (isinstance(option, Call) and option.name in ("mean", "sum", "item"))
        for option in options_of(value)
    )


def _is_without_gradients(closure: Value, events: list[Event]) -> bool:
    """Return whether a closure of the script was followed and calls nothing like `backward`."""
    if not isinstance(closure, Function):
        return False
    inside = [
        event
        for event in events
        if any(function.definition is closure.definition for function in event.stack)
    ]
    names = {
        getattr(node, "attr", getattr(node, "id", ""))
        for node in ast.walk(closure.definition)
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    calls = [event.call for event in inside if event.call is not None]
    is_known = all(call.path == "()" or call.path.startswith(("torch.", ".")) for call in calls)
    return bool(calls) and is_known and not names & set(_GRADIENTS) and not _calls_any(calls)


def _calls_any(calls: list[Call]) -> bool:
    return any(call.name in _GRADIENTS or "step" in call.name for call in calls)
