"""The report of a study: report.html, report.json and the table of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surestep.base.files import replace_file
from surestep.base.version import VERSION
from surestep.record.io import dumps, explain_write_errors, write_json
from surestep.reports.page import render_page
from surestep.tuning.page import FILES, describe_page
from surestep.tuning.result import RecordedWinner, read_result
from surestep.tuning.table import IMPORTANCE_TRIALS, count_measured, find_best

if TYPE_CHECKING:
    from surestep.tuning.rows import TrialRow
    from surestep.tuning.settings import StudySettings
    from surestep.tuning.study import SearchStudy

REPORT_FORMAT = 1
STATES = ("finished", "pruned", "failed", "running", "waiting")
# Settings in the report.
_SHOWN = ("trials", "sampler", "pruner", "seed", "fixed", "enqueued", "warm_start")


def write_report(study: SearchStudy, html: Path | None, json: Path | None) -> None:
    """Write the report of a study, whatever state its trials are in.

    Args:
        study: may be running.
        html: the page to write or replace; None writes none.
        json: the file with the numbers of the page; None writes none.

    Raises:
        RunError: a file cannot be written.
    """
    report = describe_study(study)
    if html is not None and not (json is not None and html.exists() and _is_same(json, report)):
        page = render_page(f"Search of {report['recipe']}", describe_page(report), FILES)
        with explain_write_errors(html), replace_file(html) as temporary:
            temporary.write_text(page, encoding="utf-8")
    if json is not None:  # last: if it is as before, so is the page
        write_json(json, report)


def _is_same(path: Path, report: Mapping[str, Any]) -> bool:
    """Whether a file has this report already."""
    try:
        return path.read_text(encoding="utf-8") == dumps(report, indent=1) + "\n"
    except (OSError, UnicodeDecodeError):
        return False


def describe_study(study: SearchStudy) -> dict[str, Any]:
    """Return the content of report.json; docs/search.md describes it.

    Args:
        study: may be running.

    Returns:
        What JSON can hold. A number that is not finite is None.
    """
    rows, settings = study.rows(), study.settings
    recorded = settings.as_json()
    names = [name for name, _ in settings.objectives]
    best = find_best(rows, settings.objectives)
    report = {
        "format": REPORT_FORMAT,
        "version": VERSION,
        "study": study.folder.resolve().name,
        "recipe": settings.recipe["name"],
        "objectives": [{"name": n, "direction": way} for n, way in settings.objectives],
        "where": recorded["where"],
        "space": recorded["space"],
        "settings": {name: recorded[name] for name in _SHOWN},
        "counts": {state: sum(row.state == state for row in rows) for state in STATES},
        "evaluations": sum(row.evaluations for row in rows),
        "seconds": sum(row.seconds or 0.0 for row in rows),
        "best": best,
        "winner": _read_winner(study.folder, best),
        "importances": (importances := _compute_importances(rows, settings)),
        "importance_trials": count_measured(rows) if importances else None,
        "trials": [_describe_trial(row, names) for row in rows],
    }
    return dict(_keep_finite(report))


def find_winners(study: SearchStudy, rows: Sequence[TrialRow]) -> list[int]:
    """Return the number of the winner, or those of the trials on the Pareto front."""
    best = find_best(rows, study.settings.objectives)
    winner = _read_winner(study.folder, best)
    return best if winner is None else [winner["number"]]


def _compute_importances(
    rows: Sequence[TrialRow], settings: StudySettings
) -> dict[str, dict[str, float]]:
    if sum(count_measured(rows).values()) < IMPORTANCE_TRIALS:
        return {}
    from surestep.tuning.importances import compute_importances  # which takes seconds

    return compute_importances(rows, settings.objectives, settings.space)


def _read_winner(folder: Path, best: Sequence[int]) -> RecordedWinner | None:
    """Return the winner that the end of the search recorded, if it got there and is still it."""
    winner: RecordedWinner | None = read_result(folder)["winner"]
    return winner if winner is not None and _is_current(winner, best) else None


def _is_current(winner: RecordedWinner, best: Sequence[int]) -> bool:
    """Whether the recorded winner still is one, and no trial since then is better."""
    return bool(winner["confirmed"]) or [winner["number"]] == best


def _describe_trial(row: TrialRow, names: Sequence[str]) -> dict[str, Any]:
    values = None if row.values is None else dict(zip(names, row.values, strict=True))
    reported = {str(at): value for at, value in sorted(row.intermediate.items())}
    return {**asdict(row), "values": values, "intermediate": reported}


def _keep_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _keep_finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_keep_finite(inner) for inner in value]
    return value
