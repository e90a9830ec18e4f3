"""Python's garbage collector, kept out of the steps."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def quiet_garbage() -> Iterator[Callable[[int], object]]:
    """Keep Python's garbage collector out of the steps; it is let in at log points.

    A full collection walks every object of every imported module: up to half a second.
    """
    if not gc.isenabled():  # somebody else minds it
        yield lambda _: None
        return
    frozen = gc.get_freeze_count() > 0  # then somebody else's objects are among the frozen
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()
