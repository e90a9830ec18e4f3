"""Wrap functions of torch for the time of a script, and restore them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_MISSING = object()


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


class Around:
    """Wraps a function with one call before it and one after it.

    Nested calls of what one object wraps are not seen, nor are calls in code that torch compiles.

    Args:
        before: called with the arguments.
        after: called with the result and the arguments.
        on_error: called with an exception of these two, which may not reach the script.
        is_deaf: returns whether neither is called now.
    """

    def __init__(
        self,
        before: Callable[..., None] | None,
        after: Callable[..., None] | None,
        on_error: Callable[[Exception], None],
        is_deaf: Callable[[], bool] = lambda: False,
    ) -> None:
        self._before, self._after, self._on_error = before, after, on_error
        self._is_deaf = is_deaf
        self._is_inside = False

    def __call__(self, original: Any) -> Any:
        """Return the wrapped function."""

        @functools.wraps(original)
        def wrapper(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or self._is_inside or self._is_deaf():
                return original(*args, **options)
            self._is_inside = True
            try:
                if self._before is not None:
                    self._try(self._before, *args, **options)
                result = original(*args, **options)
                if self._after is not None:
                    self._try(self._after, result, *args, **options)
            finally:
                self._is_inside = False
            return result

        return wrapper

    def _try(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except Exception as error:  # the script must not see it
            self._on_error(error)
