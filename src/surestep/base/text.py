"""Escape text from untrusted files before it is printed, and format numbers of bytes."""

import json
from typing import TextIO


def escape_control_chars(text: str) -> str:
    """Escape control characters, such as \\x1b, but not line breaks."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str) -> str:
    """Escape control characters, line breaks included."""
    return escape_control_chars(text).replace("\n", "\\n")


def print_escaped(text: str, file: TextIO | None = None) -> None:
    """Print text with its control characters escaped, and flush it.

    Args:
        text: may hold names from files, data or the command line.
        file: where to print; None is stdout.
    """
    print(escape_control_chars(text), file=file, flush=True)


def print_json(text: str) -> None:
    """Print JSON to stdout, with non-printable characters escaped as JSON does it."""
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def format_bytes(value: int | None) -> str:
    """Format a number of bytes in a fitting unit; None is "not known"."""
    if value is None:
        return "not known"
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
