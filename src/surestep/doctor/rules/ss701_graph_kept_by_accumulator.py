"""A sum or list of losses keeps the autograd graph of every batch.

The loss of a batch refers to the graph that computed it. `total += loss` and `losses.append(loss)`
keep these graphs after their batches, so memory grows with each batch until the loop ends or the
device has no memory left. The numbers are correct, so nothing shows the cause.

Ignore it if the loop has only a few batches. A sum on which `backward()` is called is not reported.

Source: https://docs.pytorch.org/docs/stable/notes/faq.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        total += loss
    print(total / 12)

Right:

    import torch

    model = torch.nn.Linear(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        outputs = model(torch.randn(8, 4))
        losses = [outputs[:, task].pow(2).mean() for task in range(6)]
        optimizer.zero_grad()
        for loss in losses:
            loss.backward(retain_graph=loss is not losses[-1])
        optimizer.step()
"""

from __future__ import annotations

import ast
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from surestep.doctor.edits import append_method
from surestep.doctor.problem import NOWHERE, Location, Problem, at_event
from surestep.doctor.runtime.graphs import Token, attach_token
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.gradients import is_differentiated
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    describe,
    find_actions,
    is_derived_with_graph,
    is_without_grad,
)
from surestep.doctor.source.values import Attribute, Call, Collection, Item, Operation, Value
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "warning"
FIXABLE = True
FIX = "Add loss.detach(), or loss.item() if you need the number at once."
_DEPTH = 3  # nodes: the loss may be divided or scaled before its backward pass
_KEPT = 64  # newest backward passes that are remembered
_IN_USE = 2  # the newest of them, whose losses may still have names
_FIRST = 64  # backward passes that are all checked
_LATER = 16  # later: one of so many
_EVERY = 4  # of them between two counts
_FEWEST = 6  # graphs
_SHARE = 0.9  # of the passes: a list that is emptied now and then keeps fewer
_FEWEST_TOGETHER = 4  # graphs that are freed together, as at the end of an epoch


def check(program: Program) -> Iterator[Problem]:
    """Find values that gather the losses of a loop whose backward pass is done in it."""
    for trace in program.traces:
        backwards = [action for action in find_actions(trace) if action.kind == "backward"]
        for event in trace.events:
            if event.loop is None or (found := _find_added(event)) is None:
                continue
            added, node = found
            losses = [a.target for a in backwards if a.event.loop is event.loop]
            is_derived = any(
                is_derived_with_graph(added, loss) or _holds(trace, added, loss) for loss in losses
            )
            if not is_derived or _is_reset(trace, event) or is_differentiated(trace, event):
                continue
            text = " ".join(ast.unparse(event.node).split())
            yield at_event(
                event,
                f"`{text}` keeps the graph of each batch: memory grows until the loop ends.",
                loss=describe(added),
                edits=append_method(event.file, node, ".detach()"),
            )


def _find_added(event: Event) -> tuple[Value, ast.expr] | None:
    """Return what an event adds to a value that outlives the batch, and its expression."""
    match event.node, event.value:
        case ast.Call(args=[node]), Call(path=".append", receiver=Collection(), args=(added,)):
            return added, node
        case ((ast.Assign() | ast.AugAssign()), _) if is_without_grad(event):
            return None
        case ast.AugAssign(value=node), added:
            return added, node
        case ast.Assign(value=ast.BinOp() as sum_), Operation(operator="+", operands=(a, b)):
            left, right = ast.unparse(sum_.left), ast.unparse(sum_.right)
            target = "" if event.target is None else ast.unparse(event.target)
            if left != right and target in (left, right):
                return (b, sum_.right) if target == left else (a, sum_.left)
    return None


def _holds(trace: Trace, added: Value, loss: Value | None) -> bool:
    """Return whether a loss is an item or an attribute of what is added: `output["loss"]`."""
    is_part = isinstance(loss, (Item, Attribute)) and isinstance(added, Call) and loss.base is added
    return is_part and not any(event.base is added for event in trace.events)


def _is_reset(trace: Trace, event: Event) -> bool:
    """Return whether each pass of the innermost loop starts with a new sum or list."""
    others = [e for e in trace.events if e.loop is event.loop and e is not event]
    stores = [other for other in others if other.kind == "store"]
    if event.call is not None:
        cleared = [e.call.receiver for e in others if e.call is not None and e.call.name == "clear"]
        made = [store.value for store in stores]
        return any(value is event.call.receiver for value in (*cleared, *made))
    return event.target is not None and any(
        store.target is not None
        and ast.unparse(store.target) == ast.unparse(event.target)
        and set(store.branches) <= set(event.branches)
        for store in stores
    )


class _Record(NamedTuple):
    """What is remembered of a backward pass.

    Attributes:
        tokens: which are gone as soon as its graph is.
        at: its line, if that is needed, and its step.
    """

    tokens: list[weakref.ref[Token]]
    at: tuple[Location, int]

    def is_alive(self) -> bool:
        """Return whether its graph is still there."""
        return any(token() is not None for token in self.tokens)


class GraphKeptByAccumulatorWatcher(Watcher):
    """Count the graphs of earlier backward passes that are still there."""

    def __init__(self) -> None:
        self._records: deque[_Record] = deque(maxlen=_KEPT)
        self._checked = self._of = self._grown = 0
        self._kept, self._freed = Tally(), Tally()

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        if run.backwards > _FIRST and run.backwards % _LATER:
            return
        if run.backwards <= _FIRST:
            self._follow_growth(run)
        at = (run.locate() if run.backwards <= _FIRST else NOWHERE), run.step
        self._checked += 1
        if self._checked % _EVERY == 0:
            self._count(run)
        tokens: list[weakref.ref[Token]] = []
        node: Any = losses[0].grad_fn if losses else None
        while len(tokens) < _DEPTH and (token := attach_token(node, "SS701")) is not None:
            tokens.append(token)
            node = node.next_functions[0][0]
        if tokens:
            self._records.append(_Record(tokens, at))

    def _follow_growth(self, run: Script) -> None:
        """Count how often the graphs of successive passes were kept and then freed together.

        A short epoch keeps too few graphs for `_count`. They must be of one line in as many steps:
        a GAN, or a loop over tasks, keeps several graphs of one step.
        """
        newest = takewhile(_Record.is_alive, reversed(self._records))
        alive = {record.at for record in newest if record.at[0] == self._records[-1].at[0]}
        if len(alive) > _IN_USE:
            self._grown = max(self._grown, len(alive))
            return
        if self._grown >= _FEWEST_TOGETHER:
            self._freed.add(run.locate(), max(1, run.step), self._grown)
        self._grown = 0

    def _count(self, run: Script) -> None:
        """Count the graphs that are still there, except the newest, which may be in use."""
        older = list(self._records)[:-_IN_USE]
        self._keep_most(run, older)
        for location in {record.at[0] for record in older}:  # one of several losses may be kept
            self._keep_most(run, [record for record in older if record.at[0] == location])

    def _keep_most(self, run: Script, records: list[_Record]) -> None:
        """Remember these records if most of their graphs, of several steps, are still there."""
        alive = [record for record in records if record.is_alive()]
        are_many = len(alive) >= _FEWEST and len(alive) >= _SHARE * len(records)
        if are_many and len(alive) > self._kept.most and len({record.at for record in alive}) > 1:
            self._kept.add(run.locate(), max(1, run.step - len(records)), len(alive))
            self._of = len(records)

    def observe(self, run: Script) -> Iterator[Problem]:
        if self._kept.most:
            yield self._kept.report(
                f"The graphs of {self._kept.most} of {self._of} earlier backward passes that "
                "were checked were still there: a sum or list keeps their losses.",
                {"graphs": self._kept.most, "passes": self._of},
            )
        elif self._freed.mistakes >= 2:
            most, times = self._freed.most, self._freed.mistakes
            yield self._freed.report(
                f"The graphs of up to {most} successive backward passes were kept, and "
                f"freed together {times} times: a sum or list keeps their losses.",
                {"graphs": most, "times": times},
            )
