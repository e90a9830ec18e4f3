"""Python's garbage collector, kept out of imports and of the steps."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def import_without_collecting() -> Iterator[None]:
    """Keep the collector out of the imports of a command, and never let it walk what they made.

    Imports make many objects and little garbage: walking them takes 0.2 s before the first step. A
    process that imported torch before is not a new command's, and is left alone.
    """
    ours = "torch" not in sys.modules or gc.get_freeze_count() > 0
    if not (ours and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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
