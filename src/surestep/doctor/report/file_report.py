"""What checking a file gave."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        has_bug: whether a rule failed.
        used: digests of the file and of those that its imports were looked for in, by absolute
            path; None for those that do not exist.
    """

    path: str
    findings: list[Finding] = field(default_factory=list)
    elsewhere: list[Finding] = field(default_factory=list)
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    has_bug: bool = False
    used: dict[str, str | None] = field(default_factory=dict)
