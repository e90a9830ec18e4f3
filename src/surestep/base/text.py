"""Text for messages: escaped if it is from untrusted files; bytes, durations and values."""

import json
from typing import Any, TextIO


def escape_control_chars(text: str) -> str:
    """Escape control characters, such as \\x1b, but not line breaks."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def escape_terminal(text: str) -> str:
    """Escape control characters, but not those of plain text: a tab, \\r, \\f and line breaks."""
    return "".join(c if c in "\t\r\f" else escape_control_chars(c) for c in text)


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


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number of things: "1 trial", "2 trials"; `plural` is that of an irregular noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


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


def format_duration(seconds: float) -> str:
    """Format seconds, as minutes and seconds from one minute on, and hours from one hour on."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def describe_value(value: Any) -> str:
    """Return what a wrong argument is, for a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return f"a {type(value).__name__}"
