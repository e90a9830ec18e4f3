"""Values of metrics: what they are, and how they are read and printed. It needs no torch."""

from typing import Any

from surestep.base.text import one_line

Value = float | list[Any]  # a table is a list of lists


def number(value: Value) -> float:
    """Return a value that is a number; NaN for a table."""
    return float("nan") if isinstance(value, list) else value


def shown(metrics: dict[str, Value]) -> str:
    """Return metrics as a line of text, without tables."""
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
    return "  ".join(f"{one_line(name)} {value:.4g}" for name, value in numbers.items())
