"""What checking a file gave."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surestep.doctor.finding import Finding


@dataclass
class FileReport:
    """What checking a file gave.

    Attributes:
        path: as it was given.
        findings: in the file, by line.
        elsewhere: findings in other files of the project, which are only seen from this one: it
            calls their functions.
        problem: why it could not be read; "" if it was.
        notes: sentences on its comments, on cells that are not Python, and on rules that failed.
        failed: codes of the rules that were not fully applied, because of a bug of surestep.
        used: digests of the file and of those that its imports were looked for in, by absolute
            path; None for those that do not exist.
    """

    path: str
    findings: list[Finding] = field(default_factory=list)
    elsewhere: list[Finding] = field(default_factory=list)
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    failed: tuple[str, ...] = ()
    used: dict[str, str | None] = field(default_factory=dict)


def list_applied(
    reports: Sequence[FileReport], codes: Mapping[Path, Collection[str]]
) -> dict[str, set[str]]:
    """Return the codes of the rules that were fully applied to each file, by its path.

    Args:
        reports: of the files.
        codes: of the rules that were selected, by the path of the file.
    """
    # A finding may be seen from another file only, so a rule counts if it failed in none.
    failed = {code for report in reports for code in report.failed}
    return {
        report.path: set() if report.problem else {*codes[Path(report.path)]} - failed
        for report in reports
    }
