"""Names and times in the messages of rules."""

from collections.abc import Iterable

_LISTED = 6  # names in a message


def list_names(names: Iterable[str]) -> str:
    """Return names for a message: the first ones in quotes, and the number of the others."""
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more


def format_seconds(seconds: float) -> str:
    """Return a time for a message, in milliseconds below 1 s."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
