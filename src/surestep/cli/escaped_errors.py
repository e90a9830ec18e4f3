"""Errors of the command line's parser, with control characters of the words escaped."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO

from surestep.base.printable import print_escaped


@contextmanager
def escape_errors(words: Sequence[str]) -> Iterator[None]:
    """Escape what the parser prints of words that hold control characters.

    Args:
        words: what the parser reads. If all are printable, it prints in color as usual.
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
