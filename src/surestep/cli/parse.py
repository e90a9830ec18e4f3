"""Parse the command line; error messages escape control characters."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial, wraps
from io import StringIO
from typing import Any, TypeVar

import tyro

from surestep.base.text import print_escaped

Options = TypeVar("Options")
_CONFIG = (tyro.conf.FlagCreatePairsOff,)


def command(name: str) -> Callable[[Callable[..., int]], Callable[[list[str]], int]]:
    """Make a function a command: its parameters are the options, its docstring the help page."""

    def decorate(function: Callable[..., int]) -> Callable[[list[str]], int]:
        @wraps(function)
        def bind(*positional: Any, **options: Any) -> Callable[[], int]:
            return partial(function, *positional, **options)

        return lambda words: parse(bind, words, f"surestep {name}")()

    return decorate


def parse(
    options: Callable[..., Options],
    words: Sequence[str],
    command: str,
    *,
    description: str | None = None,
) -> Options:
    """Parse the arguments of a command; invalid ones end the process with exit code 2.

    `options` is a dataclass of the options, or a function that takes them.
    """
    with _escape_errors(words):
        return tyro.cli(options, args=words, prog=command, description=description, config=_CONFIG)


def parse_known(
    options: type[Options], words: Sequence[str], command: str
) -> tuple[Options, list[str]]:
    """Parse the arguments that a command knows; return them and the unknown ones."""
    with _escape_errors(words):
        return tyro.cli(options, args=words, prog=command, config=_CONFIG, return_unknown_args=True)


def split_names(text: str | None) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


@contextmanager
def _escape_errors(words: Sequence[str]) -> Iterator[None]:
    """Escape control characters in the parser's messages; without any, it prints in color."""
    if all(word.isprintable() for word in words):
        yield
        return
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            yield
    finally:
        if printed.getvalue():
            print_escaped(printed.getvalue().rstrip("\n"), sys.stderr)
