"""Comments in a script that suppress findings.

`# surestep: ignore[SS101] reason`, behind a line of a statement, suppresses those of the statement:
of a loop, or another statement with a body, without the body.
`# surestep: ignore-file[SS101] reason` suppresses those of the file.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from surestep.doctor.finding import Finding
from surestep.doctor.selection import find_unknown, is_selected
from surestep.doctor.source.files import SourceFile, UnreadableError, read_source

_COMMENT = re.compile(
    r"#\s*surestep:\s*(?P<kind>ignore(?:-file)?)\b(?:\[(?P<codes>[^\]]*)\])?", re.IGNORECASE
)
_MENTION = re.compile(r"#\s*surestep\b", re.IGNORECASE)
_MISSPELT = re.compile(
    r"#\s*surestep(?::\s*|\s+)(?:ignore|disable|noqa|skip)[\w-]*\s*[\[=:(]|#\s*surestep:\s*noqa",
    re.IGNORECASE,
)


@dataclass
class Suppressions:
    """What the comments of a file suppress.

    Attributes:
        of_file: selectors of rules.
        of_lines: selectors of rules by file, with the cell of a notebook, and line.
        notes: what is wrong with the comments, one sentence for each.
    """

    of_file: set[str] = field(default_factory=set)
    of_lines: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def cover(self, finding: Finding) -> bool:
        """Return whether a comment suppresses a finding."""
        selectors = self.of_file | self.of_lines.get((finding.file, finding.line), set())
        return is_selected(finding.rule, finding.name, selectors)


def read_suppressions(file: SourceFile) -> Suppressions:
    """Read the comments of a file."""
    found = Suppressions()
    if not _MENTION.search(file.text):  # `file.contains` leaves comments out
        return found
    with suppress(SyntaxError, tokenize.TokenError):  # stricter than Python's parser
        for token in tokenize.generate_tokens(StringIO(file.text, newline=None).readline):
            if token.type != tokenize.COMMENT:
                continue
            if (comment := _COMMENT.search(token.string)) is not None:
                _add(found, comment, token.start[0], file)
            elif _MISSPELT.search(token.string):
                name, line = file.locate(token.start[0])
                found.notes.append(
                    f"{name}:{line}: the comment suppresses nothing. Write `# surestep: "
                    "ignore[SS101] reason`."
                )
    return found


def drop_suppressed(findings: Collection[Finding]) -> tuple[list[Finding], list[str]]:
    """Return the findings that no comment in their files suppresses, and what is wrong with these.

    A file that cannot be read or parsed now suppresses nothing.
    """
    known: dict[str, Suppressions] = {}
    for name in {finding.file for finding in findings}:
        with suppress(UnreadableError):
            known[name] = read_suppressions(read_source(Path(name)))
    notes = [note for name in sorted(known) for note in known[name].notes]
    return [f for f in findings if f.file not in known or not known[f.file].cover(f)], notes


def _add(found: Suppressions, comment: re.Match[str], line: int, file: SourceFile) -> None:
    name, shown = file.locate(line)
    kind = comment["kind"].lower()
    selectors = {code.strip() for code in (comment["codes"] or "").split(",") if code.strip()}
    if not selectors:
        found.notes.append(
            f"{name}:{shown}: the comment names no rule. Write `# surestep: {kind}[SS101] reason`."
        )
    for selector in sorted(selectors):
        if (message := find_unknown(selector)) is not None:
            found.notes.append(f"{name}:{shown}: {message}")
    if kind == "ignore-file":
        found.of_file |= selectors
        return
    if file.lines[line - 1].lstrip().startswith("#"):
        return  # it is behind no statement
    for covered in _list_lines(file, line):
        found.of_lines.setdefault(file.locate(covered), set()).update(selectors)


def _list_lines(file: SourceFile, line: int) -> Collection[int]:
    """Return a line, and those of the statements that it is a part of, without their bodies."""
    lines = {line}
    for node in file.nodes:
        if isinstance(node, ast.stmt):
            end = _find_end(node)
            if node.lineno <= line <= end:
                lines.update(range(node.lineno, end + 1))
    return lines


def _find_end(node: ast.stmt) -> int:
    """Return the last line of a statement, without its body."""
    if isinstance(node, ast.Match):
        return node.subject.end_lineno or node.lineno
    body: list[ast.stmt] | None = getattr(node, "body", None)
    return body[0].lineno - 1 if body else node.end_lineno or node.lineno
