"""Findings as SARIF 2.1.0, which GitHub and editors read.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html and
https://docs.github.com/en/code-security/reference/code-scanning/sarif-files/sarif-support-for-code-scanning
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from surestep.base.version import VERSION
from surestep.doctor.finding import Finding
from surestep.doctor.report.formats import split_cell
from surestep.doctor.rule import Rule

_LEVELS = {"error": "error", "warning": "warning", "speed": "note", "info": "note"}


def to_sarif(
    findings: Sequence[Finding], rules: Sequence[Rule], problems: Sequence[str]
) -> dict[str, Any]:
    """Return a log with one run.

    Args:
        findings: its results.
        rules: that were used, in which those of the findings are.
        problems: sentences on files that were not checked.
    """
    positions = {rule.code: position for position, rule in enumerate(rules)}
    run = {
        "tool": {
            "driver": {
                "name": "surestep",
                "version": VERSION,
                "rules": [_describe(rule) for rule in rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "warning", "message": {"text": problem}} for problem in problems
                ],
            }
        ],
        "results": [_result(finding, positions[finding.rule]) for finding in findings],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.summary},
        "help": {"text": f"{rule.page}\n\n{rule.fix}", "markdown": f"{rule.page}\n\n{rule.fix}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"tags": ["pytorch", rule.severity], "precision": "high"},
    }


def _result(finding: Finding, position: int) -> dict[str, Any]:
    path, cell = split_cell(finding.file)
    where: dict[str, Any] = {"artifactLocation": {"uri": _to_uri(path)}}
    text = " ".join(filter(None, (finding.message, finding.assumed, finding.fix)))
    if cell is None:
        where["region"] = {"startLine": finding.line, "startColumn": finding.column}
        if finding.end_column:
            where["region"]["endColumn"] = finding.end_column
    else:  # the lines of the file are those of its JSON
        where["region"] = {"startLine": 1}
        text = f"Cell {cell}, line {finding.line}: {text}"
    return {
        "ruleId": finding.rule,
        "ruleIndex": position,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": where}],
        "properties": {"confidence": finding.confidence},
    }


def _to_uri(path: str) -> str:
    """Return the path from the current folder, or the address of a file that is not in it."""
    absolute = os.path.abspath(path)
    relative = os.path.relpath(absolute)
    if relative.startswith(".."):
        return Path(absolute).as_uri()
    return quote(Path(relative).as_posix())
