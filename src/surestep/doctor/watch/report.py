"""What was seen in a process that trains, and in several of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from surestep.doctor.finding import SEVERITIES, Finding


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        findings: by severity, and then by the step since when.
        steps: of optimizers that were watched.
        failures: why a rule was disabled, by its code.
        facts: what a rule compares between ranks, by its code; JSON values.
        ranks: of which this is the report.
        has_failed: whether the script ended with an error.
        notes: what is wrong with the comments that suppress findings, one sentence for each.
        stopped_at: the step at which an error of this package ended the watching; None without one.
    """

    findings: list[Finding]
    steps: int
    failures: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    has_failed: bool = False
    notes: list[str] = field(default_factory=list)
    stopped_at: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Report:
        """Return the report that `to_json` returned; findings while a script runs have no edits."""
        findings = [Finding(**{**found, "edits": ()}) for found in values["findings"]]
        return Report(**{**values, "findings": findings})


def sort_findings(findings: list[Finding]) -> list[Finding]:
    """Return findings by severity, and then by the step since when."""
    return sorted(
        findings,
        key=lambda found: (
            SEVERITIES.index(found.severity),
            found.evidence["since_step"],
            found.rule,
        ),
    )


def merge_reports(
    reports: Mapping[int, Report], found: Sequence[Finding] = (), notes: Sequence[str] = ()
) -> Report:
    """Return the report of several ranks.

    A mistake that several ranks made in one line is one finding: that of the first of them, with
    their numbers as `evidence["ranks"]`.

    Args:
        reports: by rank; some may be missing.
        found: from the comparison of the ranks.
        notes: on the comments beside these.
    """
    merged: dict[tuple[str, str, int], list[tuple[int, Finding]]] = {}
    for rank, report in sorted(reports.items()):
        for finding in report.findings:
            key = (finding.rule, finding.file, finding.line)
            merged.setdefault(key, []).append((rank, finding))
    findings = list(found)
    for same in merged.values():
        _, first = same[0]
        ranks = sorted({rank for rank, _ in same})
        since = min(finding.evidence["since_step"] for _, finding in same)
        evidence = {**first.evidence, "since_step": since, "ranks": ranks}
        findings.append(replace(first, evidence=evidence))
    failures = {code: why for report in reports.values() for code, why in report.failures.items()}
    steps = max((report.steps for report in reports.values()), default=0)
    stops = [at for report in reports.values() if (at := report.stopped_at) is not None]
    all_notes = [*(note for report in reports.values() for note in report.notes), *notes]
    return Report(
        sort_findings(findings),
        steps,
        failures,
        ranks=len(reports),
        notes=list(dict.fromkeys(all_notes)),
        stopped_at=min(stops, default=None),
    )
