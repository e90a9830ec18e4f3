"""What a rule found, in the one form that all commands print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "speed", "info"]
Confidence = Literal["certain", "assumed"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "speed", "info")
VERSION = 1  # of the JSON form


@dataclass(frozen=True)
class Edit:
    """A change of a file.

    Attributes:
        start: of what is replaced, in characters from the start of the file.
        end: likewise; equal to `start` if something is inserted.
        text: what replaces it.
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A mistake in a script, or in a run.

    Attributes:
        rule: its code, such as "SS101".
        name: of the rule, such as "missing-zero-grad".
        severity: "error": the result is wrong; "warning": it is likely wrong; "speed"; "info".
        file: in which it is; of a notebook, with the number of the cell: "a.ipynb:cell 3"; empty if
            it is not known.
        line: from 1; of a notebook, in its cell; 0 if it is not known.
        column: from 1.
        message: what is wrong.
        evidence: numbers and names that show it.
        fix: what to write instead.
        end_column: after what is wrong, in the same line; 0 if it is not known.
        source: the line, as it is in the file.
        edits: of the file, that fix it and change nothing else; empty if a person must decide.
        assumed: a sentence on what the source does not show, and the rule assumed; "" if the source
            shows all of it. An assumed finding is not an error, and has no edits.
    """

    rule: str
    name: str
    severity: Severity
    file: str
    line: int
    column: int
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""
    end_column: int = 0
    source: str = ""
    edits: tuple[Edit, ...] = ()
    assumed: str = ""

    @property
    def confidence(self) -> Confidence:
        """Whether the mistake is certain, or assumes what the source does not show."""
        return "assumed" if self.assumed else "certain"


def fails(severities: Iterable[str], fail_on: object) -> bool:
    """Return whether a command fails: a finding is of the severity `fail_on`, or worse.

    Args:
        severities: of the findings.
        fail_on: "error" or "warning"; with anything else, no finding fails a command.
    """
    if fail_on not in ("error", "warning"):
        return False
    return any(severity == "error" or severity == fail_on for severity in severities)


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """Return findings in their JSON form."""
    return {"version": VERSION, "findings": [_describe(finding) for finding in findings]}


def _describe(finding: Finding) -> dict[str, Any]:
    described = asdict(finding)
    return described | {
        "fixable": bool(described.pop("edits")),
        "confidence": finding.confidence,
    }
