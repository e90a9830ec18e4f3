"""Wrap functions of torch for the time of a script, and restore them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.compiler import is_compiling

from surestep.doctor import private
from surestep.doctor.watch.guard import Guard

_MISSING = object()
# Python's `warnings` skips the frames of the import system, which it knows by this name, when it
# looks for the line to report. So a warning of a wrapped function names the line of the script.
_SKIPPED = ":importlib_bootstrap"


def wraps(original: Any) -> Callable[[Any], Any]:
    """Return `functools.wraps(original)` for a function whose frame warnings skip."""

    def wrap(function: Any) -> Any:
        code = function.__code__
        function.__code__ = code.replace(co_filename=f"{code.co_filename}{_SKIPPED}")
        return functools.wraps(original)(function)

    return wrap


@contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute while the body runs."""
    original = getattr(owner, name)
    own = vars(owner).get(name, _MISSING)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        if own is _MISSING:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)


Attributes = list[tuple[Any, str, Any]]


def replaced_attributes(wrappers: Iterable[tuple[Any, str, object]]) -> Attributes:
    """Return the attributes that are going to be replaced, with their values."""
    return [(owner, name, getattr(owner, name)) for owner, name, _ in wrappers]


def without(originals: Attributes, guard: Guard) -> Callable[[Any], Any]:
    """Return what wraps `torch.jit.script`, which finds the original functions of torch.

    It compiles what a name refers to, and knows the functions of torch by identity. It looks for
    the names of a class in the frame of its caller, of which `_frames_up` gives the distance.
    """

    def wrap(original: Any) -> Any:
        @wraps(original)
        def wrapper(
            obj: Any, optimize: Any = None, _frames_up: int = 0, *args: Any, **options: Any
        ) -> Any:
            stack = ExitStack()
            with guard:
                for owner, name, value in originals:
                    stack.enter_context(replaced(owner, name, functools.partial(_first, value)))
            try:
                return original(obj, optimize, _frames_up + 1, *args, **options)
            finally:
                with guard:
                    stack.close()

        return wrapper

    return wrap


def _first(value: Any, _: Any) -> Any:
    return value


def is_traced() -> bool:
    """Return whether torch records operations, or transforms a function, instead of running it."""
    return (
        is_compiling()
        or private.is_fx_tracing()
        or bool(private.get_tracing_state())
        or private.peek_transforms() is not None
    )


class Around:
    """Wraps a function with one call before it and one after it.

    Nested calls of what one object wraps are not seen, nor are calls in code that torch compiles.

    Args:
        before: called with the arguments.
        after: called with the result and the arguments.
        guard: for the errors of these, which may not reach the script.
        is_deaf: returns whether neither is called now.

    Attributes:
        is_inside: whether what it wraps is called now.
    """

    def __init__(
        self,
        before: Callable[..., None] | None,
        after: Callable[..., None] | None,
        guard: Guard,
        is_deaf: Callable[[], bool],
    ) -> None:
        self._before, self._after, self._guard = before, after, guard
        self._is_deaf = is_deaf
        self.is_inside = False

    def __call__(self, original: Any) -> Any:
        """Return the wrapped function."""

        @wraps(original)
        def wrapper(*args: Any, **options: Any) -> Any:
            if is_compiling() or self.is_inside:  # torch.compile traces this function
                return original(*args, **options)
            try:
                is_skipped = self._is_deaf() or is_traced()  # which takes longest
            except Exception as error:
                self._guard.fail(error)
                is_skipped = True
            if is_skipped:
                return original(*args, **options)
            self.is_inside = True
            try:
                if self._before is not None:
                    self._try(self._before, *args, **options)
                result = original(*args, **options)
                if self._after is not None:
                    self._try(self._after, result, *args, **options)
            finally:
                self.is_inside = False
            return result

        return wrapper

    def _try(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except Exception as error:
            # A call with other arguments than the function has is an error of the script, which
            # torch reports: it comes from no frame but this one.
            trace = error.__traceback__
            if not isinstance(error, TypeError) or trace is None or trace.tb_next is not None:
                self._guard.fail(error)
