"""HTML for notebooks: text is escaped, since names come from files that anyone may have written."""

from collections.abc import Iterable, Sequence
from html import escape

from surestep.base.text import one_line

_CELL = "text-align:left;vertical-align:top"


def escape_html(text: str) -> str:
    """Return text for HTML, with its control characters escaped visibly."""
    return escape(one_line(text))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; without column names, the first cell of a row is its label."""
    head = f"<thead>{_make_row(columns, len(columns))}</thead>" if columns else ""
    labels = 0 if columns else 1
    body = "".join(_make_row(row, labels) for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _make_row(cells: Sequence[str], labels: int) -> str:
    kinds = ["th"] * labels + ["td"] * (len(cells) - labels)
    marked = (
        f'<{kind} style="{_CELL}">{escape_html(cell)}</{kind}>'
        for kind, cell in zip(kinds, cells, strict=True)
    )
    return f"<tr>{''.join(marked)}</tr>"
