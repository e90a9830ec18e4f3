"""The state of Python's global generator, kept and put back in a fraction of a microsecond.

`random.getstate` makes 625 numbers of it in 11 µs, and `random.setstate` takes 4 µs to read them.
A dataset that is read a sample at a time would pay more for that than for all its seeding.

In CPython the state lies in one piece behind the head of the object: where the next word stands,
and 624 words. That is compared with what `getstate` says when this module is imported; where it is
not so, `getstate` and `setstate` are used.

Source: https://github.com/python/cpython/blob/main/Modules/_randommodule.c
"""

import random
import sys
from ctypes import c_char
from struct import Struct
from typing import Any

GLOBAL: Any = getattr(random, "_inst", None)  # whose methods the functions of the module are
_LAYOUT = Struct("@i624I")


def _memory() -> memoryview | None:
    """Return where the state lies; None where it lies otherwise than we know.

    What copies it holds the interpreter's lock. Where there is none, `getstate` takes the object's.
    """
    head, has_lock = object.__basicsize__, getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not has_lock():
        return None
    if type(GLOBAL).__basicsize__ < head + _LAYOUT.size:
        return None
    lies = memoryview((c_char * _LAYOUT.size).from_address(id(GLOBAL) + head)).cast("B")
    *words, at = random.getstate()[1]
    return lies if lies == _LAYOUT.pack(at, *words) else None


_MEMORY = _memory()


def seed(value: int) -> None:
    """Seed it as `random.seed` does, without that function's look at the type of the seed.

    6 µs instead of 8, of the 10 that a sample's seeding takes.
    """
    if GLOBAL is None:
        random.seed(value)
    else:
        super(random.Random, GLOBAL).seed(value)
        GLOBAL.gauss_next = None


def memory() -> memoryview | None:
    """Return the memory of the state, the next word's place first; None where it is unknown."""
    return _MEMORY


def get_state() -> Any:
    """Return the state, for `put_back`."""
    if _MEMORY is None:
        return random.getstate()
    return _MEMORY.tobytes(), GLOBAL.gauss_next  # the second half of a pair of gaussians


def set_state(kept: Any) -> None:
    """Give the generator a state that `keep` returned."""
    if _MEMORY is None:
        random.setstate(kept)
    else:
        _MEMORY[:], GLOBAL.gauss_next = kept
