"""Python's garbage collector, kept out of imports and of the steps."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from surestep.engine.distributed.stop_signals import defer_stop

FULL_SHARE = 0.01  # of the time of a run goes to full collections, at most
_FIRST_FULL_S = 0.1  # about what one takes that visits all objects of torch
# `gc.get_freeze_count` would know the first too, but it visits every frozen object: 20 ms or more.
_PROCESS = SimpleNamespace(froze_imports=False, has_trained=False)


@contextmanager
def import_without_collecting() -> Iterator[None]:
    """Keep signals and the collector out of the imports of a command.

    A signal is acted on afterwards. The collector never scans what the imports created: many
    objects and little garbage, and scanning them takes 0.2 s before the first step. A process that
    has imported torch before is not that of a new command, and its collector is not changed.
    """
    ours = "torch" not in sys.modules or _PROCESS.froze_imports
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
        _PROCESS.froze_imports = True


@contextmanager
def manual_gc() -> Iterator[Callable[[int], object]]:
    """Keep Python's garbage collector out of the steps; yield a function that calls it.

    That function takes the oldest generation to collect, from 0 to 2, as `gc.collect` does. A full
    collection may take 20 ms, so it waits until it is a small share of the run. The first one
    freezes what it leaves, so that later ones visit only what the run creates. It also visits what
    torch created, so in a new process it waits too. In a process that has trained before it does
    not, since it may free the model of that run.
    """
    if not gc.isenabled():  # the user has disabled it
        yield lambda _: None
        return
    # If other objects are frozen, they stay so after the run.
    others_frozen, froze = _PROCESS.froze_imports or gc.get_freeze_count() > 0, False
    next_full = time.perf_counter() + _FIRST_FULL_S / FULL_SHARE

    def freeze() -> None:
        nonlocal froze
        if not froze:
            gc.freeze()
            froze = True

    def collect(generation: int) -> None:
        nonlocal next_full
        began = time.perf_counter()
        if generation < 2 or began < next_full:
            gc.collect(min(generation, 1))
            return
        gc.collect(2)
        freeze()
        ended = time.perf_counter()
        next_full = ended + (ended - began) / FULL_SHARE

    if others_frozen or _PROCESS.has_trained:
        gc.collect()
        freeze()
        next_full = 0.0
    _PROCESS.has_trained = True
    gc.disable()
    try:
        yield collect
    finally:
        gc.enable()
        if froze and not others_frozen:
            gc.unfreeze()
