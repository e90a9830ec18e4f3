"""How trackers show the findings of a run."""

from collections.abc import Iterable, Mapping
from typing import Any


def name_finding(finding: Mapping[str, Any]) -> str:
    """Return the code and the name of the rule of a finding."""
    return f"{finding['rule']} {finding.get('name', '')}".rstrip()


def texts_by_rule(findings: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what is wrong and how to mend it, by the rule; a line for each finding of it."""
    texts: dict[str, list[str]] = {}
    for finding in findings:
        text = f"{finding['message']} {finding['fix']}".rstrip()
        texts.setdefault(name_finding(finding), []).append(text)
    return {rule: "\n".join(lines) for rule, lines in texts.items()}
