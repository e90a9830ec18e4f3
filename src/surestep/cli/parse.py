"""Parse the command line; error messages escape control characters."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
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
    with _print_plainly(words):
        return tyro.cli(options, args=words, prog=command, description=description, config=_CONFIG)


def parse_known(
    options: type[Options], words: Sequence[str], command: str
) -> tuple[Options, list[str]]:
    """Parse the arguments that a command knows; return them and the unknown ones."""
    with _print_plainly(words):
        return tyro.cli(options, args=words, prog=command, config=_CONFIG, return_unknown_args=True)


def split_names(text: str | None) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


class _Captured(StringIO):
    encoding: Any = None


@contextmanager
def _print_plainly(words: Sequence[str]) -> Iterator[None]:
    """Print what the parser prints without colors if NO_COLOR is set, or a word must be escaped.

    It prints in color if stdout is a terminal. NO_COLOR: https://no-color.org
    """
    if not os.environ.get("NO_COLOR") and all(word.isprintable() for word in words):
        yield
        return
    out, err = _Captured(), _Captured()
    out.encoding = sys.stdout.encoding  # by which the parser chooses the lines of boxes
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        for printed, stream in ((out, sys.stdout), (err, sys.stderr)):
            if text := printed.getvalue().rstrip("\n"):
                print_escaped(text, stream)
