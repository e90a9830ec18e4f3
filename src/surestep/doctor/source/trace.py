"""What a script does, in order: the events of following its source once."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

from surestep.doctor.source.files import SourceFile
from surestep.doctor.source.nodes import describe_source
from surestep.doctor.source.values import Call, Class, Function, Instance, Value

Found = TypeVar("Found")


@dataclass(eq=False, frozen=True)
class SourceLoop:
    """A loop, or a comprehension, that is being executed.

    Attributes:
        node: its statement or expression.
        iterated: what it iterates over; None for `while`.
        test: the condition of `while`; None for others.
    """

    node: ast.AST
    iterated: Value | None = None
    test: Value | None = None


@dataclass(eq=False, frozen=True)
class Branch:
    """A condition under which events happen.

    Attributes:
        node: the statement or expression with the condition.
        test: the condition; None for a handler of an exception or a case of `match`.
        is_taken: whether the events happen if the condition is true, or if it is false.
        is_guard: they follow a statement that leaves the block under the opposite condition, such
            as `if step % 4: continue`.
    """

    node: ast.AST
    test: Value | None
    is_taken: bool
    is_guard: bool = False


@dataclass(eq=False, frozen=True)
class Event:
    """Something that the script does.

    Attributes:
        kind: "call"; "store", an assignment to a name, an attribute or an item; "augment", such as
            `total += loss`; "test", a condition; "return".
        node: the expression or statement.
        file: in which it is.
        value: the call, what is assigned, the condition, or what is returned.
        target: of an assignment: its expression.
        base: the object whose attribute or item is assigned; for "augment", the value before.
        loops: around it, outermost first, those of the calling functions included.
        branches: around it, likewise.
        contexts: of `with` statements and decorators around it, likewise.
        stack: the functions that are being executed, outermost first.
        call: the call, if the event is one.
    """

    kind: str
    node: ast.AST
    file: SourceFile
    value: Value
    target: ast.expr | None = None
    base: Value | None = None
    loops: tuple[SourceLoop, ...] = ()
    branches: tuple[Branch, ...] = ()
    contexts: tuple[Value, ...] = ()
    stack: tuple[Function, ...] = ()

    call: Call | None = field(init=False, repr=False)  # read far more often than events are made

    def __post_init__(self) -> None:
        is_call = self.kind == "call" and isinstance(self.value, Call)
        object.__setattr__(self, "call", self.value if is_call else None)

    @property
    def loop(self) -> SourceLoop | None:
        """The innermost loop."""
        return self.loops[-1] if self.loops else None

    @property
    def text(self) -> str:
        """The source of its value for a message, shortened."""
        return describe_source(self.value.node)

    @property
    def line(self) -> int | None:
        """The line where it happens."""
        return getattr(self.node, "lineno", None)


@dataclass(eq=False)
class Trace:
    """The events of a file, or of one function that no other code calls.

    Attributes:
        file: it starts in.
        entry: the function; None for the file itself.
        events: in the order of execution; the body of each loop once, of each branch once.
    """

    file: SourceFile
    entry: Function | None
    events: list[Event] = field(default_factory=list)
    _kept: dict[object, Any] = field(default_factory=dict, repr=False)

    def index(self, event: Event) -> int:
        """Return the position of an event in `events`."""
        return _number_events(self)[event]

    @property
    def calls(self) -> list[tuple[Event, Call]]:
        """The events that are calls, with their calls."""
        return _list_calls(self)


def once_per_trace(find: Callable[[Trace], Found]) -> Callable[[Trace], Found]:
    """Make a function keep what it found in a trace: many rules ask for the same."""

    @wraps(find)
    def found(trace: Trace) -> Found:
        if find not in trace._kept:
            trace._kept[find] = find(trace)
        return cast("Found", trace._kept[find])

    return found


@once_per_trace
def _number_events(trace: Trace) -> dict[Event, int]:
    return {event: index for index, event in enumerate(trace.events)}


@once_per_trace
def _list_calls(trace: Trace) -> list[tuple[Event, Call]]:
    return [(event, event.call) for event in trace.events if event.call is not None]


@dataclass(eq=False)
class Program:
    """A file and everything that it does, as far as its source shows.

    Attributes:
        file: the one that is checked; events may be in others that it imports.
        traces: of the file, and of each function that nothing in it calls.
        functions: all functions and methods of the file.
        classes: all classes of the file.
        instances: an object of each class of the file, made with unknown arguments.
        truncated: the last events of the traces that are too long to be followed to their ends.
    """

    file: SourceFile
    traces: list[Trace] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    instances: dict[Class, Instance] = field(default_factory=dict)
    truncated: list[Event] = field(default_factory=list)

    @cached_property
    def events(self) -> list[Event]:
        """The events of all traces."""
        return [event for trace in self.traces for event in trace.events]

    @cached_property
    def files(self) -> list[SourceFile]:
        """The file, and the others in which something happens."""
        return list(dict.fromkeys([self.file, *(event.file for event in self.events)]))

    def contains(self, pattern: re.Pattern[str]) -> bool:
        """Return whether the source of one of the files contains a pattern."""
        return any(file.contains(pattern) for file in self.files)

    def mentions(self, name: str) -> bool:
        """Return whether one of the files uses an attribute or a variable, such as `p.grad`."""
        return any(name in file.names for file in self.files)
