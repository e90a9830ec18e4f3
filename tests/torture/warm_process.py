"""The warm process that the tests of a session share."""

import atexit
from functools import cache
from typing import Any

from tests.torture.warm import Warm

# The breakage of the children of the next request; set by tests of the tests.
broken: str | None = None


@cache
def _warm() -> Warm:
    warm = Warm()
    atexit.register(warm.close)
    return warm


def ask(what: str, **more: Any) -> dict[str, Any]:
    """Send a request to the warm process, which the first request starts."""
    if broken is not None:
        more["broken"] = broken
    return _warm().do(what, **more)
