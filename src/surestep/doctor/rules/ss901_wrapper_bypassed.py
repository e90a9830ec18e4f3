"""The forward pass of a training step does not go through DistributedDataParallel.

DistributedDataParallel prepares the reduction of gradients in its own forward pass. If the loss is
computed by `model.module(x)`, or by the model that was wrapped, no gradient is reduced: each rank
trains a different model. Nothing fails, and only the model of rank 0 is saved.

Ignore it if the gradients are reduced elsewhere. Evaluation with `model.module` is correct.

Source: https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design

Wrong:

    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        loss = model.module(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)


    torch.distributed.init_process_group("gloo")
    model = Net()
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import NOWHERE, Location, Problem, at_node
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, find_actions, options_of
from surestep.doctor.source.values import Call, Value, walk
from surestep.doctor.source.wrapping import (
    REDUCES,
    event_of,
    find_wrapper,
    find_wrappers,
    last_store,
)
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "error"
FIX = "Call the wrapped model itself: model(x)."
_FEWEST = 3  # backward passes before something is claimed
_WRAPPER = "DistributedDataParallel"
_MOST_MODELS = 50  # that are remembered within a step


def check(program: Program) -> Iterator[Problem]:
    """Find losses whose forward pass uses only the model inside of a wrapper."""
    for trace in program.traces:
        if not any(True for _ in find_wrappers(trace, REDUCES)) or _reduces_by_hand(trace):
            continue
        for action in find_actions(trace):
            if action.kind != "backward" or action.target is None:
                continue
            calls = [part for part in walk(action.target) if isinstance(part, Call)]
            forwards = [(c, event_of(trace, c)) for c in calls if c.path in ("()", ".module")]
            known = [(call, event) for call, event in forwards if event is not None]
            if any(_is_wrapped(trace, event, call) for call, event in known):
                continue
            for call, event in known:
                if _bypasses(trace, event, call):
                    yield at_node(
                        event.node,
                        event.file,
                        f"`{describe(call)}` is not reduced between ranks: it does not go through "
                        "DistributedDataParallel.",
                    )


def _reduces_by_hand(trace: Trace) -> bool:
    calls = (event.call for event in trace.events)
    return any(call is not None and "reduce" in call.name for call in calls)


def _called_expression(call: Call) -> ast.expr | None:
    return call.node.func if isinstance(call.node, ast.Call) else None


def _is_wrapped(trace: Trace, event: Event, call: Call) -> bool:
    """Return whether a call goes through a wrapper, or through what may be one."""
    if call.path == ".module":
        return False
    if isinstance(call.receiver, Call) and call.receiver.path in REDUCES:
        return True
    expression = _called_expression(call)
    if expression is None or not isinstance(expression, (ast.Name, ast.Attribute)):
        return True
    return find_wrapper(trace, event, expression, REDUCES) is not None


def _bypasses(trace: Trace, event: Event, call: Call) -> bool:
    expression = _called_expression(call)
    if call.path == ".module" and isinstance(expression, ast.Attribute):
        is_wrapper = isinstance(call.receiver, Call) and call.receiver.path in REDUCES
        return is_wrapper or find_wrapper(trace, event, expression.value, REDUCES) is not None
    last = None if expression is None else last_store(trace, event, expression)
    if last is None:
        return False
    return any(
        _is_inside(call.receiver, wrapper) and set(wrapping.branches) <= set(event.branches)
        for wrapping, wrapper in find_wrappers(trace, REDUCES)
        # What is assigned after the wrapping, as from a list of models, may be the wrapper.
        if trace.index(last) < trace.index(wrapping) < trace.index(event)
    )


def _is_inside(receiver: Value | None, wrapper: Call) -> bool:
    """Return whether the model that is called is certainly the one that was wrapped."""
    inside, called = options_of(wrapper.argument(0, "module")), options_of(receiver)
    return len(inside) == len(called) == 1 and inside[0] is called[0]


class WrapperBypassedWatcher(Watcher):
    """Count the backward passes after a forward pass of a wrapped model alone."""

    SAMPLED = ("on_forward", "after_backward")

    def __init__(self) -> None:
        # Identities of the models that were called since the last backward pass.
        self._alone: dict[int, nn.Module] = {}
        self._wrapped: set[int] = set()
        self._passes: dict[int, tuple[int, Location, int]] = {}  # number, first location and step
        self._bypassed: set[int] = set()  # models that are in a wrapper

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        import torch

        is_outermost = len(run.modules) == 1 and not run.in_backward
        is_trained = module.training and torch.is_grad_enabled()
        if not (is_outermost and is_trained and torch.distributed.is_initialized()):
            return
        if type(module).__name__ == _WRAPPER:
            self._wrapped.add(id(module.module))
        elif len(self._alone) < _MOST_MODELS:
            self._alone[id(module)] = module

    def after_backward(self, run: Script, losses: Sequence[Tensor]) -> None:
        if not self._alone and not self._wrapped:
            return
        for key in self._alone.keys() - self._wrapped:
            count, location, step = self._passes.get(key, (0, NOWHERE, 0))
            if not count:
                location, step = run.locate(), run.step + 1
            self._passes[key] = count + 1, location, step
            # The wrapper may be gone at the end of the script.
            if count + 1 == _FEWEST and any(
                wrapper.module is self._alone[key] for wrapper in run.find_modules(_WRAPPER)
            ):
                self._bypassed.add(key)
        self._alone.clear()
        self._wrapped.clear()

    def observe(self, run: Script) -> Iterator[Problem]:
        for key in self._bypassed:
            count, location, step = self._passes[key]
            yield Problem(
                f"{count} backward passes used the model inside of DistributedDataParallel alone, "
                "so their gradients were not reduced.",
                {"passes": count},
                location=location,
                since_step=step,
            )
