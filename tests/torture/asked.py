"""The one warm process of a test session, asked by the tests."""

import atexit
from functools import cache
from typing import Any

from tests.torture.warm import Warm

# What the children of the next request are broken by; set by tests of the tests.
broken: str | None = None


@cache
def _warm() -> Warm:
    warm = Warm()
    atexit.register(warm.close)
    return warm


def ask(what: str, **more: Any) -> dict[str, Any]:
    """Ask the warm process; it is started by the first request."""
    if broken is not None:
        more["broken"] = broken
    return _warm().do(what, **more)
