"""Errors for misspelled arguments of the public classes and functions."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from surestep.base.errors import SurestepError, suggest_names

_CLOSE = 0.8  # a name that is misspelled, and not one of another library
CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def suggest_arguments(
    error: type[SurestepError], instead: Callable[[str, Any], str | None] = lambda name, value: None
) -> Callable[[CallableT], CallableT]:
    """Return a decorator of a function or class: for an unknown argument it names a similar one.

    `instead` returns what to use instead of an argument with this value, if it is known.

    A class checks this in `__new__`, which is not part of the traceback of a later error.
    """

    def decorate(target: CallableT) -> CallableT:
        known, changed = inspect.signature(target).parameters, cast("Any", target)

        def check(kwargs: dict[str, Any]) -> None:
            for name, value in kwargs.items():
                if name not in known:
                    is_close = get_close_matches(name, known, cutoff=_CLOSE)
                    use = None if is_close else instead(name, value)
                    raise error(
                        f"{changed.__name__}() has no argument {name!r}. "
                        + (suggest_names(name, known) if use is None else use)
                    )

        @wraps(changed)
        def call(*args: Any, **kwargs: Any) -> Any:
            check(kwargs)
            return target(*args, **kwargs)

        def new(cls: Any, *_: Any, **kwargs: Any) -> Any:
            if cls is target:  # a subclass may have other arguments
                check(kwargs)
            return object.__new__(cls)

        if not isinstance(target, type):
            return cast("CallableT", call)
        new.__signature__ = inspect.signature(changed.__init__)  # type: ignore[attr-defined]
        changed.__new__ = new
        return target

    return decorate
