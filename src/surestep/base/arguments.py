"""Errors for misspelled arguments of the public classes and functions."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from surestep.base.errors import SurestepError, suggest_names

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def suggest_arguments(error: type[SurestepError]) -> Callable[[CallableT], CallableT]:
    """Return a decorator of a function or class: for an unknown argument it names a similar one.

    A class checks this in `__new__`, which is not part of the traceback of a later error.
    """

    def decorate(target: CallableT) -> CallableT:
        known, changed = inspect.signature(target).parameters, cast("Any", target)

        def check(kwargs: dict[str, Any]) -> None:
            for name in kwargs:
                if name not in known:
                    raise error(
                        f"{changed.__name__}() has no argument {name!r}. "
                        f"{suggest_names(name, known)}"
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
