"""Create something in MLflow once, although the answer of the server may be lost."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

KEY = "surestep.key"
_Found = TypeVar("_Found")


def create_once(
    search: Callable[[], Sequence[_Found]],
    create: Callable[[], _Found],
    delete: Callable[[_Found], Any],
) -> _Found:
    """Return what `search` finds, or else what `create` creates; delete doubles.

    A server can do what it is asked although its answer is lost: then MLflow's client repeats the
    request, and so does the thread of a tracker after an error. Each repetition creates a double.

    Args:
        search: returns all that have our key, the one to use first.
        create: creates one with our key.
        delete: deletes a double, which has no content.
    """
    if not (found := search()):
        created = create()
        found = search() or [created]
    for double in found[1:]:
        delete(double)
    return found[0]
