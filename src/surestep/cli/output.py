"""Print tables and format numbers."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.text import one_line, print_escaped

if TYPE_CHECKING:  # the guides of schedules and losses are printed without torch
    from surestep.engine.value import Value


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command, where rich would end the process with exit code 1."""
        raise


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table to stdout; without column names it has no header."""
    names, rows = list(columns), [list(row) for row in rows]
    drawn = Table(show_header=bool(names))
    for name in names or ["" for _ in rows[0]]:
        drawn.add_column(escape(one_line(name)), overflow="fold")
    for row in rows:
        drawn.add_row(*(escape(one_line(str(cell))) for cell in row))
    # Without a terminal there is no width to fit, and programs cannot read wrapped lines.
    width = None if sys.stdout.isatty() else 10_000
    console = _Console(file=sys.stdout, width=width, highlight=False)
    console.print(one_line(title), style="bold", markup=False, soft_wrap=True)
    console.print(drawn)


def print_entry(heading: str, texts: Mapping[str, str]) -> None:
    """Print a heading and its texts by label to stdout."""
    console = _Console(file=sys.stdout, highlight=False)
    width = min(console.width, 100) if sys.stdout.isatty() else 100
    margin = max(map(len, texts)) + 2
    console.print(heading, style="bold", markup=False, soft_wrap=True)
    for label, text in texts.items():
        first, *more = wrap(text, width - margin - 4, break_long_words=False) or [""]
        lines = [f"    {label:<{margin}}{first}", *(" " * (margin + 4) + line for line in more)]
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
    console.print()


def write_new_file(path: Path, text: str) -> None:
    """Write the file of `--out`, which must not exist yet.

    Raises:
        ConfigError: it exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} already exists. Pass --out FILE, or delete it.") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. Pass --out FILE."
        ) from error


def format_number(value: float | None) -> str:
    """Format a number; None is "not known"."""
    return "not known" if value is None else f"{value:.4g}"


def format_age(seconds: float) -> str:
    """Format an age in its largest unit of at least 2, such as "3 days"."""
    for unit, one in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * one:
            return f"{int(seconds // one)} {unit}"
    return f"{max(0, int(seconds))} s"


def metric_rows(metrics: Mapping[str, "Value"]) -> list[tuple[str, str]]:
    """Return metrics as rows; a metric that is a table shows its size, "a table of 3 x 3"."""
    rows = []
    for name, value in metrics.items():
        sizes, inner = [], value  # type: list[str], Any
        while isinstance(inner, list):
            sizes.append(str(len(inner)))
            inner = inner[0] if inner else None
        text = f"a table of {' x '.join(sizes)}" if sizes else format_number(inner)
        rows.append((name, text))
    return rows


def print_confusion_matrix(title: str, counts: list[list[float]]) -> None:
    """Print a confusion matrix: a row for each true class, a column for each predicted one."""
    classes = range(len(counts))
    rows = [(label, *(f"{count:g}" for count in counts[label])) for label in classes]
    print_table(f"{title}: rows true, columns predicted", ("", *map(str, classes)), rows)


def load_rows(
    kind: str, name: str | None, names: Sequence[str], load: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what `load` returns for `name`, or for each of `names`.

    For all of them, a broken plug-in is a printed line.
    """
    if name is not None:
        if name not in names:
            raise ConfigError(f"There is no {kind} {name!r}. {suggest_names(name, names)}")
        return [load(name)]
    rows = []
    for name in names:
        try:
            rows.append(load(name))
        except ConfigError as error:
            print_escaped(str(error), file=sys.stderr)
    return rows
