"""Tables and figures for people."""

import sys
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from surestep.base.text import one_line

if TYPE_CHECKING:  # the guides of schedules and losses are printed without torch
    from surestep.engine.value import Value


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table to stdout; without names of columns it has no head."""
    names, rows = list(columns), [list(row) for row in rows]
    drawn = Table(show_header=bool(names))
    for name in names or ["" for _ in rows[0]]:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(escape(one_line(str(cell))) for cell in row))
    # Without a terminal there is no width to fit, and a folded line is no use to a program.
    width = None if sys.stdout.isatty() else 10_000
    console = Console(file=sys.stdout, width=width, highlight=False)
    console.print(one_line(title), style="bold", markup=False, soft_wrap=True)
    console.print(drawn)


def print_entries(entries: Iterable[tuple[str, Mapping[str, str]]]) -> None:
    """Print entries to stdout, each as a heading and what there is to say of it, by word."""
    console = Console(file=sys.stdout, highlight=False)
    width = min(console.width, 100) if sys.stdout.isatty() else 100
    for heading, said in entries:
        console.print(heading, style="bold", markup=False, soft_wrap=True)
        margin = max(map(len, said)) + 2
        for word, text in said.items():
            first, *more = wrap(text, width - margin - 4, break_long_words=False) or [""]
            console.print(f"    {word:<{margin}}{first}", markup=False, soft_wrap=True)
            for line in more:
                console.print(" " * (margin + 4) + line, markup=False, soft_wrap=True)
        console.print()


def format_number(value: float | None) -> str:
    """Show a number; what is not known is said to be so."""
    return "not known" if value is None else f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Show seconds as people say them."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def format_age(seconds: float) -> str:
    """Show how long ago something was, in the largest unit that says enough."""
    for unit, one in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * one:
            return f"{int(seconds // one)} {unit}"
    return f"{max(0, int(seconds))} s"


def metric_rows(metrics: Mapping[str, "Value"]) -> list[tuple[str, str]]:
    """Return metrics as rows; of a table its size."""
    return [
        (name, format_table_size(value) if isinstance(value, list) else format_number(value))
        for name, value in metrics.items()
    ]


def format_table_size(value: list[Any]) -> str:
    """Show how large a table is."""
    sizes, inner = [], value  # type: list[str], Any
    while isinstance(inner, list):
        sizes.append(str(len(inner)))
        inner = inner[0] if inner else None
    return f"a table of {' x '.join(sizes)}"


def print_confusion_matrix(title: str, counts: list[list[float]]) -> None:
    """Print a confusion matrix: a row for each true class, a column for each predicted one."""
    classes = range(len(counts))
    rows = [(each, *(f"{count:g}" for count in counts[each])) for each in classes]
    print_table(f"{title}: rows true, columns predicted", ("", *map(str, classes)), rows)
