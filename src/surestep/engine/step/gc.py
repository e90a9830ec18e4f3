"""Python's garbage collector, kept out of imports and of the steps."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from surestep.engine.distributed.stop_signals import defer_stop

FULL_SHARE = 0.01  # of the time of a run goes to full collections, at most
# `gc.get_freeze_count` would know it too, but it visits every frozen object: 20 ms and more.
_IMPORTS = SimpleNamespace(frozen=False)


@contextmanager
def import_without_collecting() -> Iterator[None]:
    """Keep signals and the collector out of the imports of a command.

    A signal is acted on afterwards. The collector never scans what the imports created: many
    objects and little garbage, and scanning them takes 0.2 s before the first step. A process that
    has imported torch before is not that of a new command, and its collector is not changed.
    """
    ours = "torch" not in sys.modules or _IMPORTS.frozen
    if not (ours and gc.isenabled()):
        with defer_stop():
            yield
        return
    gc.disable()
    try:
        with defer_stop():
            yield
    finally:
        gc.freeze()
        gc.enable()
        _IMPORTS.frozen = True


@contextmanager
def manual_gc() -> Iterator[Callable[[int], object]]:
    """Keep Python's garbage collector out of the steps; yield a function that calls it.

    That function takes the oldest generation to collect, from 0 to 2, as `gc.collect` does. A full
    collection may take 20 ms, so it waits until it is a small share of the run.
    """
    if not gc.isenabled():  # the user has disabled it
        yield lambda _: None
        return
    # If other objects are frozen, they stay so after the run.
    frozen = _IMPORTS.frozen or gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.disable()
    next_full = 0.0

    def collect(generation: int) -> None:
        nonlocal next_full
        began = time.perf_counter()
        is_full = generation == 2 and began >= next_full
        gc.collect(2 if is_full else min(generation, 1))
        if is_full:
            ended = time.perf_counter()
            next_full = ended + (ended - began) / FULL_SHARE

    try:
        yield collect
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()
