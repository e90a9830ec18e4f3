"""The optimizer updates parameters that the model no longer uses.

An optimizer keeps the parameters that it was given. If a layer or the whole model is replaced
afterwards, it continues to update the old ones. The new ones stay at their first values. Nothing
fails, because the new parameters still get gradients.

Ignore it if something else updates the new parameters.

Source: https://docs.pytorch.org/docs/stable/optim.html#constructing-it

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model = torch.nn.Linear(4, 1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()

Right:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 8)
            self.head = nn.Linear(8, 10)

        def forward(self, x):
            return self.head(self.body(x).relu())


    net = Net()
    net.head = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.unheld import Unheld
from surestep.doctor.source.evaluation import find_forwards
from surestep.doctor.source.modules import (
    contains,
    has_parameters,
    models_of,
    traverse_inputs,
)
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    Action,
    describe,
    find_actions,
    is_made_by,
    is_model,
    is_optimizer,
    is_same,
    strip,
)
from surestep.doctor.source.values import Call, Instance, Value, is_made_from
from surestep.doctor.watcher import Script, Watcher
from surestep.doctor.wording import list_names

if TYPE_CHECKING:
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = "Create the optimizer after the last change of the model."
_FEWEST = 3  # steps with a gradient that nothing used

_ADDS = ("add_param_group", "load_state_dict")
_HEADS = ("fc", "classifier", "head", "heads")


def check(program: Program) -> Iterator[Problem]:
    """Find optimizers of models that are replaced, or whose layers are, before the step."""
    for trace in program.traces:
        actions = find_actions(trace)
        for step in (action for action in actions if action.kind == "step"):
            if not is_made_by(step.target, "torch.optim."):
                continue
            yield from _find_other_model(trace, actions, step)
            yield from _find_replaced_layers(trace, strip(step.target), trace.index(step.event))
        if not any(action.is_step for action in actions):  # of a constructor: steps come later
            made = [c for _, c in trace.calls if is_made_by(c, "torch.optim.") and is_optimizer(c)]
            yield from _find_replaced_layers(trace, made[-1] if made else None, len(trace.events))


def _find_other_model(trace: Trace, actions: list[Action], step: Action) -> Iterator[Problem]:
    """Find a step whose loss comes from models that the optimizer does not hold."""
    held = models_of(step.target)
    used: list[Value] = []
    for action in actions:
        if action.kind == "backward" and action.event.loops == step.event.loops:
            if action.target is None:
                return
            parts = set(traverse_inputs(action.target))
            models = [c.receiver for _, c in find_forwards(trace) if c in parts and c.receiver]
            if not models:
                return
            used.extend(models)
    known = [strip(value) for value in (*held, *used)]
    if not held or not used or not all(_is_new(value) for value in known):
        return
    if any(is_same(a, b) or contains(a, b) or contains(b, a) for a in held for b in used):
        return
    if any(_puts_into(event, a, b) for event in trace.events for a in held for b in used):
        return
    yield at_event(
        step.event,
        f"The optimizer holds the parameters of a model that is not in the loss: "
        f"`{describe(used[0])}` was created again.",
    )


def _puts_into(event: Event, layer: Value, model: Value) -> bool:
    """Return whether a model gets a layer, as by `model[2] = layer` or `model.append(layer)`."""
    call = event.call
    owner = event.base if call is None else call.receiver
    given = [event.value] if call is None else call.arguments
    if owner is None or not is_same(owner, model):
        return False
    layer = strip(layer) or layer
    return any(is_made_from(value, layer) for value in given)


def _is_new(value: Value | None) -> bool:
    """Return whether a module is created in the script and has parameters."""
    return isinstance(value, (Call, Instance)) and is_model(value) and has_parameters(value)


def _find_replaced_layers(trace: Trace, optimizer: Value | None, end: int) -> Iterator[Problem]:
    held = models_of(optimizer)
    created = next((i for i, e in enumerate(trace.events) if e.value is optimizer), None)
    if created is None or not held or any(call.name in _ADDS for _, call in trace.calls):
        return
    for event in trace.events[created:end]:
        if event.kind != "store" or not isinstance(event.target, ast.Attribute):
            continue
        if event.branches or not has_parameters(event.value) or not _is_new(strip(event.value)):
            continue
        if any(is_same(event.base, model) for model in held) and _replaces(trace, created, event):
            yield at_event(
                event,
                f"`{ast.unparse(event.target)}` is replaced after the optimizer was created: the "
                "optimizer updates the old layer.",
                optimizer_line=trace.events[created].line,
                assumed="The model had such a layer before." * (not _is_new(strip(event.base))),
            )


def _replaces(trace: Trace, created: int, event: Event) -> bool:
    """Return whether the attribute had another module when the optimizer was created."""
    name = event.target.attr if isinstance(event.target, ast.Attribute) else ""
    base = strip(event.base)
    return (
        (isinstance(base, Call) and name in _HEADS)
        or any(  # a model of a library
            earlier.kind == "store"
            and isinstance(earlier.target, ast.Attribute)
            and earlier.target.attr == name
            and is_same(earlier.base, base)
            and earlier.value is not event.value
            for earlier in trace.events[:created]
        )
    )


class OptimizerHoldsStaleParametersWatcher(Watcher):
    """Find optimizers of unused parameters, in models with newer parameters."""

    SAMPLED = ("on_step",)

    def __init__(self) -> None:
        self._unheld = Unheld()
        self._stale: dict[int, int] = {}  # parameters without a gradient, by optimizer

    def on_new_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        self._unheld.remember(run, optimizer)

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        used = list(iter_parameters(optimizer))
        unused = {id(p) for p in used if p.grad is None}
        if not unused:
            return
        models = list(run.models)
        called = {id(p) for model in models for p in model.parameters()}
        trained = {id(p) for p in used if p.requires_grad}
        stale = unused & trained
        if len(unused) < len(used):
            stale -= called  # a model of an earlier run of the loop may still be there
        if unused.isdisjoint(called | trained):
            stale = unused  # they were frozen in a model that has others now
        if stale:
            self._stale[id(optimizer)] = len(stale)
            for model in models:
                self._unheld.check(run, model, optimizer)

    def observe(self, run: Script) -> Iterator[Problem]:
        late = [seen for seen in self._unheld.find(_FEWEST) if seen.is_new]
        if late:
            first, stale = min(late, key=lambda seen: seen.since_step), max(self._stale.values())
            yield first.report(
                f"The optimizer has {stale} parameters that no model uses any more. "
                f"{list_names(seen.name for seen in late)} had gradients in {first.steps} steps "
                "that were checked, and nothing updated them.",
                {
                    "parameters": [seen.name for seen in late],
                    "stale": stale,
                    "steps": first.steps,
                },
            )
