"""Fix what has one safe correction, in scripts. Notebooks are not changed.

A file is written at once, by a new one that takes its name, and keeps its encoding, line ends and
mode. It is left alone if it changed since it was checked.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from io import BytesIO
from pathlib import Path

from surestep.base.errors import SurestepError
from surestep.base.files import replace_file
from surestep.doctor.check import check_file
from surestep.doctor.finding import Edit, Finding
from surestep.doctor.report.file_report import FileReport
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import (
    Project,
    SourceFile,
    UnreadableError,
    digest_of,
    parse_source,
    read_source,
)

_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # as `git apply` takes them
_MOST_PASSES = 10  # over edits that overlap, and mistakes that a fix uncovers


class FixError(SurestepError):
    """A file could not be fixed; the message says why."""


@dataclass(frozen=True, eq=False)
class FixedFile:
    """A file with its mistakes fixed.

    Attributes:
        path: as it was given.
        before: its text.
        after: its text, fixed.
        count: findings that are fixed.
        digest: of its bytes before.
        encoding: of its bytes.
    """

    path: Path
    before: str
    after: str
    count: int
    digest: str
    encoding: str

    def diff(self) -> str:
        """Return the change as a unified diff; a byte order mark is a part of the first line."""
        mark = "\ufeff" if self.encoding == "utf-8-sig" else ""
        before, after = (_LINE.findall(mark + text) for text in (self.before, self.after))
        lines = unified_diff(before, after, str(self.path), str(self.path))
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )

    def patch(self) -> bytes:
        """Return the diff in the encoding of the file, so that it applies."""
        # `diff` has the byte order mark; the codec would write a second one.
        return self.diff().encode("utf-8" if self.encoding == "utf-8-sig" else self.encoding)

    def write(self) -> None:
        """Replace the file.

        Raises:
            FixError: it changed, or cannot be written. It is as it was.
        """
        target = Path(os.path.realpath(self.path))  # not the link to it
        try:
            mode = target.stat().st_mode
            if not mode & stat.S_IWUSR or not os.access(target, os.W_OK):
                raise FixError(f"{self.path} is read-only and was not fixed.")
            with replace_file(target) as temporary:
                temporary.write_bytes(self.after.encode(self.encoding))
                shutil.copymode(target, temporary)
                if digest_of(target.read_bytes()) != self.digest:
                    raise FixError(_changed(self.path))
        except OSError as error:
            reason = error.strerror or error
            raise FixError(
                f"{self.path} could not be written and is as it was: {reason}."
            ) from error


def _changed(path: Path) -> str:
    return f"{path} changed while it was being checked and was not fixed. Run the command again."


def fix_file(report: FileReport, codes: Sequence[str]) -> FixedFile | None:
    """Return a checked file, fixed but not written; None if it has nothing to fix.

    Args:
        report: of the check.
        codes: of the rules.

    Raises:
        FixError: it changed since it was checked.
    """
    findings = report.findings
    if not any(finding.edits for finding in findings):
        return None
    path = Path(report.path)
    try:
        first = read_source(path)
        encoding, _ = tokenize.detect_encoding(BytesIO(path.read_bytes()).readline)
    except (UnreadableError, OSError, SyntaxError) as error:
        raise FixError(_changed(path)) from error
    if first.digest != report.used.get(os.path.abspath(path)):
        raise FixError(_changed(path))
    if digest_of(first.text.encode(encoding)) != first.digest:
        raise FixError(f"{path} has bytes that {encoding} writes otherwise, and was not fixed.")
    rules = [rule for rule in load_rules() if rule.code in codes]
    file, count = first, 0
    for _ in range(_MOST_PASSES):
        edits, fixed = choose_edits(findings)
        if not edits:
            break
        count += fixed
        file = _parse(path, apply_edits(file.text, edits), encoding)
        findings = check_file(file, rules, Project())
    return FixedFile(path, first.text, file.text, count, first.digest, encoding)


def _parse(path: Path, text: str, encoding: str) -> SourceFile:
    try:
        return parse_source(path, text.encode(encoding))
    except (UnreadableError, UnicodeEncodeError) as error:
        raise FixError(
            f"{path} was not fixed, as it could not be read after it: {error} This is a bug of "
            "surestep: please report it."
        ) from error


def choose_edits(findings: Sequence[Finding]) -> tuple[list[Edit], int]:
    """Return the edits of findings that do not overlap, in order, and of how many they are.

    All edits of a finding are chosen, or none.
    """
    chosen: set[Edit] = set()
    count = 0
    for finding in findings:
        new = set(finding.edits) - chosen
        if finding.edits and not any(_overlap(a, b) for a in new for b in chosen):
            chosen |= new
            count += 1
    return sorted(chosen, key=lambda edit: (edit.start, edit.end)), count


def _overlap(a: Edit, b: Edit) -> bool:
    is_same_spot = (a.start, a.end) == (b.start, b.end)
    return is_same_spot or (a.start < b.end and b.start < a.end)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return a text after edits that are in order and do not overlap."""
    parts, position = [], 0
    for edit in edits:
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])
