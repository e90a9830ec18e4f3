"""Check one script: its findings by all rules, without those that its comments suppress."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path

from surestep.doctor.finding import Finding
from surestep.doctor.report.file_report import FileReport
from surestep.doctor.rule import Rule
from surestep.doctor.source.files import Project, SourceFile
from surestep.doctor.source.interpreter import follow
from surestep.doctor.suppress import read_suppressions

# Scripts that name none of these have no training step and no data for one.
_RELEVANT = re.compile(
    r"torch|lightning|accelerate|transformers|ignite|fastai|deepspeed|sklearn|timm"
)


def check_file(
    file: SourceFile, rules: Sequence[Rule], project: Project, report: FileReport | None = None
) -> list[Finding]:
    """Return the findings in a file, by line; each position once for each rule.

    Args:
        file: to check.
        rules: to use.
        project: where its imports are looked for.
        report: where to note what is found in other files, rules that failed, and comments that
            name no rule; None raises the exceptions of rules.
    """
    comments = read_suppressions(file)
    if report is not None:
        report.notes.extend((*file.notes, *comments.notes))
    if not _is_relevant(file, project):
        return []
    program = follow(file, project)
    own = [str(file.path), *(f"{file.path}:cell {cell}" for _, cell in file.cells)]
    order = {name: position for position, name in enumerate(own)}
    found = {}
    for rule in rules:
        try:
            for finding in rule.check(program):
                found[finding.rule, finding.file, finding.line, finding.column] = finding
        except Exception as error:
            if report is None:
                raise
            note_bug(report, rule.code, error)
            report.failed += (rule.code,)
    all_comments = {str(other.path): read_suppressions(other) for other in program.files[1:]}
    all_comments |= dict.fromkeys(own, comments)
    shown = [
        f for f in found.values() if f.file in all_comments and not all_comments[f.file].cover(f)
    ]
    if report is not None:
        report.elsewhere = [finding for finding in shown if finding.file not in order]
    mine = (finding for finding in shown if finding.file in order)
    return sorted(mine, key=lambda f: (order[f.file], f.line, f.column, f.rule))


def _is_relevant(file: SourceFile, project: Project) -> bool:
    """Return whether a file, or one that it imports, may have a training step."""
    return file.contains(_RELEVANT) or any(
        imported.contains(_RELEVANT) for imported in project.find_imports(file)
    )


def note_bug(report: FileReport, part: str, error: Exception) -> None:
    """Note an exception that only a bug of surestep can raise.

    Args:
        report: of the file.
        part: of surestep that failed: the code of a rule.
        error: what it raised.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    report.notes.append(
        f"{report.path}: {part} failed: {type(error).__name__}: {error} "
        f"({Path(last.filename).name}:{last.lineno}). This is a bug of surestep: please report it."
    )
