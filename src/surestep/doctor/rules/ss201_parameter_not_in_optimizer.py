"""Parameters are added or unfrozen after the optimizer was created without them.

An optimizer only updates the parameters that it was given. A layer that is added later stays at its
first values, and so does one that was frozen, and therefore left out, when the optimizer was
created. Nothing fails: these parameters get gradients, which nothing uses.

Ignore it if something else updates them. Layers that are frozen on purpose, and optimizers of a
part of the model, are not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html

Wrong:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 8)

        def forward(self, x):
            return self.head(self.body(x).relu())


    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.head = nn.Linear(8, 1)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 8)

        def forward(self, x):
            return self.head(self.body(x).relu())


    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.head = nn.Linear(8, 1)
    optimizer.add_param_group({"params": net.head.parameters()})
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.unheld import Unheld
from surestep.doctor.source.modules import (
    contains,
    find_switched,
    has_parameters,
    models_of,
    traverse_inputs,
)
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import (
    describe,
    find_actions,
    is_made_by,
    is_same,
    is_scheduler,
    strip,
)
from surestep.doctor.source.values import Call, Instance, Value
from surestep.doctor.watcher import Script, Watcher
from surestep.doctor.wording import list_names

if TYPE_CHECKING:
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = "Create the optimizer afterwards, or call optimizer.add_param_group for the new parameters."
_FEWEST = 3  # steps with a gradient that nothing used


def check(program: Program) -> Iterator[Problem]:
    """Find layers that are added, and parameters that are unfrozen, too late."""
    for trace in program.traces:
        if any(call.name == "add_param_group" for _, call in trace.calls):
            continue
        for step in (action for action in find_actions(trace) if action.kind == "step"):
            optimizer = strip(step.target)
            if not isinstance(optimizer, Call) or not is_made_by(optimizer, "torch.optim."):
                continue
            created = next((e for e in trace.events if e.value is optimizer), None)
            if created is None or created.loops != step.event.loops[: len(created.loops)]:
                continue
            between = trace.events[trace.index(created) : trace.index(step.event)]
            if any(_creates_optimizer(event) for event in between[1:]):
                continue
            before, models = trace.events[: trace.index(created)], models_of(optimizer)
            yield from _find_added(before, created, between, models)
            if _is_filtered(optimizer):
                yield from _find_unfrozen(before, between, models)


def _creates_optimizer(event: Event) -> bool:
    call = event.call
    return call is not None and call.path.startswith("torch.optim.") and not is_scheduler(call)


def _find_added(
    before: list[Event], created: Event, between: list[Event], models: list[Value]
) -> Iterator[Problem]:
    for event in between:
        target = event.target
        if event.kind != "store" or not isinstance(target, ast.Attribute) or event.branches:
            continue
        if not has_parameters(event.value) or not isinstance(strip(event.base), Instance):
            continue
        if not any(is_same(event.base, model) for model in models):
            continue
        if any(_is_same_attribute(earlier, event) for earlier in before):
            continue  # it is replaced, which SS202 finds
        if any(is_same(event.value, model) for model in models):
            continue
        yield at_event(
            event,
            f"`{ast.unparse(target)}` is added after the optimizer was created, so nothing updates "
            "its parameters.",
            optimizer_line=created.line,
        )


def _is_same_attribute(earlier: Event, event: Event) -> bool:
    return (
        isinstance(earlier.target, ast.Attribute)
        and isinstance(event.target, ast.Attribute)
        and earlier.target.attr == event.target.attr
        and is_same(earlier.base, event.base)
    )


def _is_filtered(optimizer: Call) -> bool:
    """Return whether the optimizer was given only the parameters that were not frozen."""
    nodes = (
        node
        for given in optimizer.arguments
        for part in traverse_inputs(given, 50)
        if isinstance(part.node, ast.expr)
        for node in ast.walk(part.node)
    )
    return any(isinstance(node, ast.Attribute) and node.attr == "requires_grad" for node in nodes)


def _find_unfrozen(
    before: list[Event], between: list[Event], models: list[Value]
) -> Iterator[Problem]:
    """Find parameters that were frozen when the optimizer was created, and no longer are."""
    roots = [
        root for event in before if (root := find_switched(event, is_trained=False)) is not None
    ]
    frozen = [r for r in roots if any(is_same(r, m) or contains(m, r) for m in models)]
    for event in between:
        root = find_switched(event, is_trained=True)
        if any(is_same(root, f) or contains(root, f) or contains(f, root) for f in frozen):
            yield at_event(
                event,
                f"`{describe(root)}` is unfrozen after the optimizer was created without it, so "
                "nothing updates it.",
            )


class ParameterNotInOptimizerWatcher(Watcher):
    """Find parameters with gradients that came after the optimizer of their model."""

    SAMPLED = ("on_step",)

    def __init__(self) -> None:
        self._unheld = Unheld()

    def on_new_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        self._unheld.remember(run, optimizer)

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        used = {id(p): p for p in iter_parameters(optimizer)}
        for model in list(run.models):
            own = {id(parameter) for parameter in model.parameters()}
            # Otherwise the optimizer has layers that the model no longer has: SS202.
            is_current = all(key in own or p.grad is not None for key, p in used.items())
            if is_current and not own.isdisjoint(used):
                self._unheld.check(run, model, optimizer)

    def observe(self, run: Script) -> Iterator[Problem]:
        found = self._unheld.find(_FEWEST)
        for is_new in (True, False):
            late = [seen for seen in found if seen.is_new is is_new]
            if not late:
                continue
            first = min(late, key=lambda seen: seen.since_step)
            when = "added" if is_new else "unfrozen"
            yield first.report(
                f"{list_names(seen.name for seen in late)} had gradients in {first.steps} steps "
                "that were checked, and nothing updated them: they were "
                f"{when} after the optimizer was created.",
                {"parameters": [seen.name for seen in late], "steps": first.steps},
            )
