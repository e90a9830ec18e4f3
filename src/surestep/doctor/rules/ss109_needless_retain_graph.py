"""A backward pass keeps its graph, but nothing uses it again.

With `retain_graph=True`, `backward()` does not free the memory of the forward pass. It is freed
when the loss is replaced, so two graphs exist during the next forward pass. Nothing fails until
the memory is full.

Ignore it if another part of the program calls `backward()` through the same graph.

Source: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward(retain_graph=True)
        optimizer.step()

Right:

    import torch

    body, heads = torch.nn.Linear(4, 4), [torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)]
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        features = body(torch.randn(8, 4))
        heads[0](features).mean().backward(retain_graph=True)
        heads[1](features).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.steps import StepOrder
from surestep.doctor.source.trace import Program, SourceLoop
from surestep.doctor.source.training import Action, describe, options_of, strip
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Instance,
    Unknown,
    Value,
    walk,
)
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "speed"
FIX = "Remove retain_graph=True."
_FEWEST_GRAPHS = 4
_MOST_GRAPHS = 10  # that are followed
_MOST_NODES = 5000  # of a graph


def check(program: Program) -> Iterator[Problem]:
    """Find the only backward pass of a script, if it keeps a graph made in the same pass."""
    for trace in program.traces:
        order = StepOrder(trace)
        backwards = [action for action in order.actions if action.kind == "backward"]
        if len(backwards) != 1 or not order.is_all_clear:
            continue
        action = backwards[0]
        call, loop = action.event.call, action.event.loop
        if call is None or loop is None or not _keeps_graph(call):
            continue
        if _has_state(order, loop) or not _is_made_inside(order, action, loop):
            continue
        yield at_event(action.event, f"`{describe(call)}` keeps a graph that nothing uses again.")


def _keeps_graph(call: Call) -> bool:
    given = call.argument(1, "retain_graph")
    return isinstance(given, Constant) and given.value is True


def _has_state(order: StepOrder, loop: SourceLoop) -> bool:
    """Return whether a value may go from one pass of a loop to the next."""
    if any(
        event.kind in ("store", "augment")
        and loop in event.loops
        and not isinstance(event.target, ast.Name)
        for event in order.trace.events
    ):
        return True
    inside = {id(node) for node in ast.walk(loop.node)}
    stored: dict[bool, set[str]] = {True: set(), False: set()}
    for node in ast.walk(order.trace.file.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored[id(node) in inside].add(node.id)
    return bool(stored[True] & stored[False])


def _is_made_inside(order: StepOrder, action: Action, loop: SourceLoop) -> bool:
    """Return whether known modules made the whole graph of a loss inside a loop."""
    inside = {
        id(event.value)
        for event in order.trace.events
        if event.kind == "call" and loop in event.loops
    }
    forwards = 0
    for value in walk(action.target) if action.target is not None else ():
        if isinstance(value, Collection) and value.type == "list":
            return False
        if isinstance(value, Unknown) or (isinstance(value, Attribute) and value.name != "loss"):
            return False
        if isinstance(value, Call) and "requires_grad" in value.keywords:
            return False
        if isinstance(value, Call) and value.path == "()":
            if id(value) not in inside or not _is_stateless(value.receiver):
                return False
            forwards += 1
    return forwards > 0


def _is_stateless(receiver: Value | None) -> bool:
    """Return whether a module is certainly one that keeps nothing of its last forward pass."""
    for option in options_of(strip(receiver)):
        if isinstance(option, Instance):
            definitions = [cls.definition for cls in option.cls.lineage()]
            methods = [
                node
                for definition in definitions
                for node in definition.body
                if isinstance(node, ast.FunctionDef) and node.name != "__init__"
            ]
            if any(_stores_attribute(method) for method in methods):
                return False
        elif not (isinstance(option, Call) and option.path.startswith("torch.nn.")):
            return False
    return True


def _stores_attribute(method: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        for node in ast.walk(method)
    )


class NeedlessRetainGraphWatcher(Watcher):
    """Count how often the parts of kept graphs run backward."""

    def __init__(self) -> None:
        self._graphs = Tally()  # that were kept
        self._is_used = False

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        if (
            not keeps_graph
            or self._graphs.mistakes >= _MOST_GRAPHS
            or self._is_used
            or len(losses) != 1
        ):
            return
        location = run.locate()
        self._graphs.add(location, run.step + 1)
        # A script that keeps graphs in several lines has parts of one loss, as critics of GANs.
        self._is_used |= location != self._graphs.location
        nodes = _find_lowest_nodes(losses[0])
        self._is_used |= not nodes
        for node in nodes:
            node.register_prehook(self._count_runs())

    def _count_runs(self) -> Callable[[tuple[Tensor, ...]], None]:
        runs = 0

        def count(_: tuple[Tensor, ...]) -> None:
            nonlocal runs
            runs += 1
            self._is_used |= runs > 1

        return count

    def observe(self, run: Script) -> Iterator[Problem]:
        graphs = self._graphs.mistakes
        if graphs >= _FEWEST_GRAPHS and not self._is_used:
            yield self._graphs.report(
                f"{graphs} graphs were kept after their backward pass, and none of them was "
                "used again.",
                {"graphs": graphs},
            )


def _find_lowest_nodes(loss: Tensor) -> list[Any]:
    """Return the nodes of a graph next to its leaves; none of a very large graph.

    Each part that two losses share has such a node.
    """
    lowest, seen, waiting = [], set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if len(seen) > _MOST_NODES:
            return []
        following = [found for found, _ in node.next_functions if found is not None]
        if any(found.name().endswith("AccumulateGrad") for found in following):
            lowest.append(node)
        waiting += [found for found in following if not found.name().endswith("AccumulateGrad")]
    return lowest
