"""Record the events of a trace, with what is around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from surestep.doctor.source.files import SourceFile
from surestep.doctor.source.trace import Branch, Event, SourceLoop
from surestep.doctor.source.values import Function, Value

MAX_EVENTS = 20_000  # of a trace


class BudgetSpentError(Exception):
    """The script is too large to be followed to its end."""


class Position(NamedTuple):
    """Where execution is: what an event has around it."""

    loops: tuple[SourceLoop, ...] = ()
    branches: tuple[Branch, ...] = ()
    contexts: tuple[Value, ...] = ()
    stack: tuple[Function, ...] = ()


class Recorder:
    """The events of the current trace, and the position where execution is.

    Attributes:
        position: the current one.
        events: of the current trace.
    """

    def __init__(self) -> None:
        self.position = Position()
        self.events: list[Event] = []

    def add(
        self,
        kind: str,
        node: ast.AST,
        file: SourceFile,
        value: Value,
        *,
        target: ast.expr | None = None,
        base: Value | None = None,
    ) -> None:
        """Append an event at the current position."""
        if len(self.events) >= MAX_EVENTS:
            raise BudgetSpentError
        position = self.position
        around = (position.loops, position.branches, position.contexts, position.stack)
        self.events.append(Event(kind, node, file, value, target, base, *around))

    def enter(
        self,
        *,
        loop: SourceLoop | None = None,
        branch: Branch | None = None,
        contexts: tuple[Value, ...] = (),
        function: Function | None = None,
    ) -> None:
        """Add to the position, until the `scoped` around it ends."""
        now = self.position
        self.position = Position(
            now.loops if loop is None else (*now.loops, loop),
            now.branches if branch is None else (*now.branches, branch),
            now.contexts + contexts,
            now.stack if function is None else (*now.stack, function),
        )

    @contextmanager
    def scoped(
        self,
        *,
        loop: SourceLoop | None = None,
        branch: Branch | None = None,
        contexts: tuple[Value, ...] = (),
        function: Function | None = None,
    ) -> Iterator[None]:
        """Add to the position while the body runs."""
        before = self.position
        self.enter(loop=loop, branch=branch, contexts=contexts, function=function)
        try:
            yield
        finally:
            self.position = before

    @contextmanager
    def fresh(self) -> Iterator[list[Event]]:
        """Record a trace of its own while the body runs."""
        before, self.position, self.events = (self.position, self.events), Position(), []
        try:
            yield self.events
        finally:
            self.position, self.events = before
