"""numpy's and Python's global generators, if a model or a loss draws from them.

They are seeded like torch's at each micro-batch, and restored afterwards. That costs 20 us a
micro-batch, so it is done only if something draws: the first step of a process is seeded and
watched. If nothing drew, later steps compare 8 bytes of each generator before and after. A step in
which something draws for the first time is computed again, with seeds.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char
from struct import Struct
from typing import Any

import numpy as np

# numpy's stubs do not export them.
from numpy.random import get_bit_generator, set_bit_generator  # type: ignore[attr-defined]

_WORDS = 4 * 624  # bytes of the words of an MT19937, before the index of the next one
_SIZE = _WORDS + 4
_PYTHON_LAYOUT = Struct("@i624I")  # the index of the next word, and the words


def _python_memory() -> memoryview | None:
    """Return the memory of the state of Python's generator; None if its layout is unknown.

    In CPython the state follows the object's header. This is compared with `random.getstate`.

    Source: https://github.com/python/cpython/blob/main/Modules/_randommodule.c
    """
    generator: Any = getattr(random, "_inst", None)
    header, has_gil = object.__basicsize__, getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not has_gil():
        return None
    if type(generator).__basicsize__ < header + _PYTHON_LAYOUT.size:
        return None
    memory = (c_char * _PYTHON_LAYOUT.size).from_address(id(generator) + header)
    *words, index = random.getstate()[1]
    view = memoryview(memory).cast("B")
    return view if view == _PYTHON_LAYOUT.pack(index, *words) else None


def _numpy_memory(bits: Any) -> memoryview | None:
    """Return the memory of the state of an MT19937; None if its layout is unknown."""
    if not isinstance(bits, np.random.MT19937):
        return None
    memory = memoryview((c_char * _SIZE).from_address(bits.ctypes.state_address)).cast("B")
    state = bits.state["state"]
    expected = state["key"].astype("=u4").tobytes() + np.int32(state["pos"]).tobytes()
    return memory if memory == expected else None


class GlobalGenerators:
    """The two generators during a step: seeded for each micro-batch, or only watched.

    Attributes:
        seeded: call `seed` for each micro-batch, within `preserved`.
        watched: 8 bytes of the state of each, which a draw changes; valid if not `seeded`.
    """

    def __init__(self, *, lazy: bool) -> None:
        self._own = np.random.MT19937(0)
        self._bits = get_bit_generator()  # kept alive: `watched` is its memory
        numpy_memory, python_memory = _numpy_memory(self._bits), _python_memory()
        self._lazy = lazy and numpy_memory is not None and python_memory is not None
        self.seeded = True
        self.watched: tuple[memoryview, ...] = ()
        self._own_memory = _numpy_memory(self._own)
        if self._lazy and self._own_memory is not None:
            assert numpy_memory is not None
            assert python_memory is not None
            self.watched = (python_memory[:8].cast("Q"), numpy_memory[_WORDS - 4 :].cast("Q"))
            self._in_step = (self.watched[0], self._own_memory[_WORDS - 4 :].cast("Q"))
        self._seeds: tuple[int, ...] = ()
        self._drew = False

    def seed(self, seed: int) -> None:
        """Seed both for a micro-batch."""
        if self._lazy:
            self._check_draws()
        np.random.seed(seed % 2**32)
        random.seed(seed)
        if self._lazy:
            self._seeds = tuple(view[0] for view in self._in_step)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Preserve the program's generators during a step.

        After a step in which nothing drew, `seeded` is off if that is allowed.
        """
        self._seeds = ()
        with preserve_globals(self._own):
            yield
            if self._lazy:
                self._check_draws()
                self.seeded, self._lazy = self._drew, not self._drew

    def notice(self) -> None:
        """Seed from now on, since something drew in a step that was only watched."""
        self.seeded, self._lazy, self._drew = True, False, True

    def _check_draws(self) -> None:
        """Note whether something drew since the last seed."""
        if self._seeds and self._seeds != tuple(view[0] for view in self._in_step):
            self._drew = True


@contextmanager
def preserve_globals(own: np.random.MT19937 | None = None) -> Iterator[None]:
    """Restore numpy's and Python's global generators.

    numpy draws from a different bit generator meanwhile: to copy its state takes 90 us. What is
    lost is the second of a pair of gaussians, which loading data drops as well.
    """
    bits, kept = get_bit_generator(), random.getstate()
    set_bit_generator(np.random.MT19937(0) if own is None else own)
    _PRESERVED.append(bits)
    try:
        yield
    finally:
        _PRESERVED.pop()
        set_bit_generator(bits)
        random.setstate(kept)


_PRESERVED: list[Any] = []  # bit generators of the program, while its generators are not in use


def state_of_globals() -> tuple[Any, Any] | None:
    """Return the state of both, for `repeat_draws`; None in a step that is only watched."""
    return (random.getstate(), np.random.get_state(legacy=False)) if _PRESERVED else None


@contextmanager
def repeat_draws(state: tuple[Any, Any] | None) -> Iterator[None]:
    """Draw again what was drawn after `state_of_globals`, and restore the generators."""
    now = state_of_globals() if state is not None else None
    _put(state)
    try:
        yield
    finally:
        _put(now)


def _put(state: tuple[Any, Any] | None) -> None:
    if state is not None:
        random.setstate(state[0])
        np.random.set_state(state[1])
