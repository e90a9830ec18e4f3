"""Text from files that anybody may have written, as a terminal may be given it."""

import json
from typing import TextIO


def printable(text: str) -> str:
    """Return text with what would steer a terminal spelled out: \\x1b for escape."""
    return "".join(each if each.isprintable() or each == "\n" else _spelled(each) for each in text)


def one_line(text: str) -> str:
    """Return text with what would steer a terminal spelled out, line breaks too."""
    return printable(text).replace("\n", "\\n")


def print_escaped(text: str, file: TextIO | None = None) -> None:
    """Print text with its control characters escaped, and flush it.

    Args:
        text: may hold names from files, data or the command line.
        file: where to print; None is stdout.
    """
    print(printable(text), file=file, flush=True)


def print_json(text: str) -> None:
    """Print JSON to stdout; characters that are not printable are escaped as JSON escapes them."""
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
