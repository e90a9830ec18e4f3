"""Comments in a script that suppress findings.

`# surestep: ignore[SS101] reason` suppresses those of its line, or of the statement that starts in
it. `# surestep: ignore-file[SS101] reason` suppresses those of the file.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO

from surestep.doctor.finding import Finding
from surestep.doctor.selection import find_unknown, is_selected
from surestep.doctor.source.files import SourceFile

_COMMENT = re.compile(r"#\s*surestep:\s*(?P<kind>ignore(?:-file)?)\b(?:\[(?P<codes>[^\]]*)\])?")


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
    if not _COMMENT.search(file.text):
        return found
    with suppress(SyntaxError, tokenize.TokenError):  # stricter than Python's parser
        for token in tokenize.generate_tokens(StringIO(file.text, newline=None).readline):
            comment = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if comment is not None:
                _add(found, comment, token.start[0], file)
    return found


def _add(found: Suppressions, comment: re.Match[str], line: int, file: SourceFile) -> None:
    name, shown = file.locate(line)
    selectors = {code.strip() for code in (comment["codes"] or "").split(",") if code.strip()}
    if not selectors:
        found.notes.append(
            f"{name}:{shown}: the comment names no rule. Write `# surestep: "
            f"{comment['kind']}[SS101] reason`."
        )
    for selector in sorted(selectors):
        if (message := find_unknown(selector)) is not None:
            found.notes.append(f"{name}:{shown}: {message}")
    if comment["kind"] == "ignore-file":
        found.of_file |= selectors
        return
    for covered in _list_lines(file.tree, line):
        found.of_lines.setdefault(file.locate(covered), set()).update(selectors)


def _list_lines(tree: ast.Module, line: int) -> Collection[int]:
    """Return a line, and those of the statement that starts in it, without its body."""
    lines = {line}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno == line:
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno
            lines.update(range(line, (end or line) + 1))
    return lines
