"""What the rows of the table are written with."""

from collections.abc import Callable, Mapping
from typing import Any

from surestep.engine.plan import Known, Refusal, Row

Rows = Mapping[str, tuple[Row, ...]]
Refusals = Mapping[str, tuple[Refusal, ...]]


def always(_: Known) -> bool:
    """Hold whatever is known."""
    return True


def is_said(option: str) -> Callable[[Known], bool]:
    """Return a condition that holds where the option was said."""
    return lambda k: option in k.said


def said(option: str, read: Callable[[Any], Any] = lambda value: value) -> Row:
    """Choose what was said."""
    return Row(is_said(option), lambda k: read(k.said[option]), "said: {origin}")


def default(value: Any, reason: str) -> Row:
    """Choose `value` where no row before did."""
    return Row(always, lambda _: value, reason)


def plain(option: str, value: Any, reason: str) -> tuple[Row, ...]:
    """Choose what was said, or else `value`."""
    return (said(option), default(value, reason))
