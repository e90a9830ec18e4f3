"""Text from files that anybody may have written, as a terminal may be given it."""

import json
from typing import TextIO


def escape_control_chars(text: str) -> str:
    """Return text with what would steer a terminal spelled out: \\x1b for escape."""
    return "".join(each if each.isprintable() or each == "\n" else _spelled(each) for each in text)


def one_line(text: str) -> str:
    """Return text with what would steer a terminal spelled out, line breaks too."""
    return escape_control_chars(text).replace("\n", "\\n")


def print_escaped(text: str, file: TextIO | None = None) -> None:
    """Print text with its control characters escaped, and flush it.

    Args:
        text: may hold names from files, data or the command line.
        file: where to print; None is stdout.
    """
    print(escape_control_chars(text), file=file, flush=True)


def print_json(text: str) -> None:
    """Print JSON to stdout; characters that are not printable are escaped as JSON escapes them."""
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def format_bytes(value: int | None) -> str:
    """Show bytes in the unit that fits; what is not known is said to be so."""
    if value is None:
        return "not known"
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
