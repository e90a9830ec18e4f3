"""Parse the command line; error messages escape control characters."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import TypeVar

import tyro

from surestep.base.text import print_escaped

Options = TypeVar("Options")
_CONFIG = (tyro.conf.FlagCreatePairsOff,)


def parse(
    options: type[Options], words: Sequence[str], command: str, *, description: str | None = None
) -> Options:
    """Parse the arguments of a command; invalid ones end the process with exit code 2.

    Args:
        options: the dataclass of the command's options.
        words: the arguments after the command.
        command: as it is typed, "surestep ckpt list".
        description: for `--help`; the class's docstring if it is None.
    """
    with _escape_errors(words):
        return tyro.cli(options, args=words, prog=command, description=description, config=_CONFIG)


def parse_known(
    options: type[Options], words: Sequence[str], command: str
) -> tuple[Options, list[str]]:
    """Parse the arguments that a command knows; return them and the unknown ones."""
    with _escape_errors(words):
        return tyro.cli(options, args=words, prog=command, config=_CONFIG, return_unknown_args=True)


@contextmanager
def _escape_errors(words: Sequence[str]) -> Iterator[None]:
    """Escape control characters in the parser's messages.

    Args:
        words: the arguments. If all are printable, the parser prints in color as usual.
    """
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
