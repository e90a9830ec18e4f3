"""The forms in which `surestep check` prints what it found."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from surestep.base.text import escape_control_chars, format_count
from surestep.doctor.finding import SEVERITIES, Finding

WIDEST = 100  # characters of a line of source that are shown
_CELL = re.compile(r"(?P<path>.*\.ipynb):cell (?P<cell>\d+)")
_GITHUB_LEVELS = {"error": "error", "warning": "warning", "speed": "notice", "info": "notice"}


def format_text(finding: Finding) -> str:
    """Return a finding for people: where, what, the source with marks below it, and the fix."""
    lines = [
        f"{finding.file}:{finding.line}:{finding.column} {finding.rule} {finding.name} "
        f"{finding.message}"
    ]
    if finding.source:
        number = str(finding.line)
        source, marks = _mark(finding)
        lines += [f"  {number} | {source}", f"  {' ' * len(number)} | {marks}"]
    if finding.assumed:
        lines.append(f"  Assumed: {finding.assumed}")
    if finding.fix:
        lines.append(f"  Fix: {finding.fix}")
    return escape_control_chars("\n".join(lines))


def _mark(finding: Finding) -> tuple[str, str]:
    """Return the line with the mistake, shortened around it, and carets below the mistake."""
    start, text = finding.column - 1, finding.source.rstrip()
    end = max(finding.end_column - 1, start + 1)
    if len(text) > WIDEST:
        first = max(0, min(start - WIDEST // 4, len(text) - WIDEST))
        last = min(first + WIDEST, len(text))
        before, after = "... " if first else "", " ..." if last < len(text) else ""
        text = f"{before}{text[first:last]}{after}"
        start, end = start - first + len(before), min(end, last) - first + len(before)
    margin, marked, rest = (
        part.replace("\t", "    ") for part in (text[:start], text[start:end], text[end:])
    )
    marks = " " * _measure(margin) + "^" * max(1, _measure(marked))
    return margin + marked + rest, marks


def _measure(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def summarize(
    findings: Sequence[Finding], files: int, unreadable: int, excluded: int, known: int = 0
) -> str:
    """Return a line with the numbers of findings and files.

    Args:
        findings: those that are shown.
        files: that were checked.
        unreadable: files that could not be read.
        excluded: files.
        known: findings of a baseline.
    """
    counts = Counter(finding.severity for finding in findings)
    severities = ", ".join(
        format_count(counts[name], name)
        if name in ("error", "warning")
        else f"{counts[name]} {name}"
        for name in SEVERITIES
        if counts[name]
    )
    found = format_count(len(findings), "finding") + (f" ({severities})" if findings else "")
    rest = [(unreadable, "could not be read"), (excluded, "excluded"), (known, "in the baseline")]
    notes = "".join(f", {number} {text}" for number, text in rest if number)
    line = f"{found} in {format_count(files, 'file')}{notes}."
    if fixable := sum(bool(finding.edits) for finding in findings):
        line += f" `--fix` can fix {fixable}."
    return line + (f" `surestep explain {findings[0].rule}` explains a rule." if findings else "")


def format_github(finding: Finding) -> str:
    """Return a finding as a command of a GitHub workflow, which annotates the line."""
    path, cell = split_cell(finding.file)
    properties = {"file": path}
    where = ""
    if cell is None:
        properties |= {"line": str(finding.line), "col": str(finding.column)}
    else:  # the lines of the file are those of its JSON
        where = f"Cell {cell}, line {finding.line}: "
    properties["title"] = f"{finding.rule} {finding.name}"
    shown = ",".join(f"{key}={_escape(value, ':,')}" for key, value in properties.items())
    lines = (f"{where}{finding.message}", finding.assumed, finding.fix)
    text = _escape("\n".join(filter(None, lines)))
    return f"::{_GITHUB_LEVELS[finding.severity]} {shown}::{text}"


def split_cell(file: str) -> tuple[str, int | None]:
    """Return the path of the file of a finding, and the number of the cell of a notebook."""
    match = _CELL.fullmatch(file)
    return (match["path"], int(match["cell"])) if match else (file, None)


def _escape(text: str, more: str = "") -> str:
    """Escape what has a meaning in a command of a workflow."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    for char in more:
        text = text.replace(char, f"%{ord(char):02X}")
    return escape_control_chars(text)
