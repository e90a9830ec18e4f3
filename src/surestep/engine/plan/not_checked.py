"""What a check before the first step could not decide: the Plan lists it."""

from contextvars import ContextVar


class NotChecked:
    """Collects what is not checked, until it is closed.

    Attributes:
        notes: the reasons by what was not checked.
    """

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self._token = _COLLECTED.set(self)

    def close(self) -> None:
        """Stop collecting."""
        _COLLECTED.reset(self._token)


_COLLECTED: ContextVar[NotChecked | None] = ContextVar("not checked", default=None)


def is_collecting() -> bool:
    """Return whether the Plan will list what is not checked; it does not in a step."""
    return _COLLECTED.get() is not None


def not_checked(what: str, why: str) -> None:
    """Note that a check gives up; a check that does not apply to a Task notes nothing.

    Args:
        what: what was to be checked, such as "metrics['f1']".
        why: the reason.
    """
    collected = _COLLECTED.get()
    if collected is not None:
        collected.notes.setdefault(what, why)
