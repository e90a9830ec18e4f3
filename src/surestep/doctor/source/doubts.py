"""What is in the way of an answer: the events at which a question about a script gives up.

Rules ask whether all that happens between two events is understood, in which mode a module is, and
so on. Where the answer is "that is not known", the event that decides it is noted, and
`surestep check --why` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from surestep.doctor.source.trace import Event

_listeners: list[list[Doubt]] = []


@dataclass(frozen=True, eq=False)
class Doubt:
    """An event at which a question gave up.

    Attributes:
        text: what is not known because of it: the end of a sentence about its source.
        cause: the event.
        about: the events that the question was about.
    """

    text: str
    cause: Event
    about: tuple[Event, ...]


def note(text: str, cause: Event, *about: Event) -> None:
    """Note why a question has no answer, if someone listens."""
    for doubts in _listeners:
        doubts.append(Doubt(text, cause, about))


@contextmanager
def listen() -> Iterator[list[Doubt]]:
    """Collect what is noted while the body runs."""
    doubts: list[Doubt] = []
    _listeners.append(doubts)
    try:
        yield doubts
    finally:
        _listeners.remove(doubts)
