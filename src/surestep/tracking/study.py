"""Send the result of a search to the trackers of its trials, and check what they got."""

import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from surestep.base.errors import RunError
from surestep.base.secrets import describe_error
from surestep.base.text import format_count
from surestep.record.io import read_json
from surestep.record.schemas import PLAN, TRACKER
from surestep.tracking.follower import describe_rest
from surestep.tracking.registry import tracker_class
from surestep.tracking.replay import list_recorded
from surestep.tracking.tracker import StudyResult, Tracker

_MOST_NAMED = 10


def finish_study(trackers: Iterable[str | Tracker], study: StudyResult) -> list[str]:
    """Send the result of a search to each tracker, in this thread.

    Args:
        trackers: names, or objects that followed no run.
        study: its best trial, and files such as its report.

    Returns:
        A message for each tracker that failed; a failure never raises.
    """
    messages = []
    for tracker in trackers:
        name = tracker if isinstance(tracker, str) else tracker.name
        try:
            found = tracker_class(tracker)() if isinstance(tracker, str) else tracker
            found.end_study(study)
        except Exception as error:  # whatever the tracker's library raises
            messages.append(
                f"{name} did not take the result of the study {study.name}: "
                f"{describe_error(error)}."
            )
    return messages


def describe_missing(runs: Iterable[Path], study: Path) -> list[str]:
    """Return a message for each tracker that lacks events of a trial.

    Args:
        runs: folders of trials that have ended.
        study: the folder of their search.
    """
    lacking: dict[str, list[Path]] = {}
    for run in runs:
        for name in _list_trackers(run):
            if _is_missing_events(run, name):
                lacking.setdefault(name, []).append(run)
    return [_describe_missing(name, runs, study) for name, runs in lacking.items()]


def _list_trackers(run: Path) -> list[str]:
    """Return the trackers of a run by name; none if it failed before it had a Plan."""
    path = run / "plan.json"
    options = read_json(path, PLAN) if path.exists() else {}
    return list(dict.fromkeys([*(options.get("logging.trackers") or ()), *list_recorded(run)]))


def _is_missing_events(run: Path, tracker: str) -> bool:
    events, record = run / "events.jsonl", run / "trackers" / f"{tracker}.json"
    delivered = 0
    if record.exists():
        with suppress(RunError):  # a record that cannot be read: nothing is known to be delivered
            delivered = read_json(record, TRACKER)["offset"]
    return events.exists() and describe_rest(events, delivered) is not None


def _describe_missing(tracker: str, runs: list[Path], study: Path) -> str:
    names = ", ".join(run.name for run in runs[:_MOST_NAMED])
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return (
        f"{tracker} is missing events of {format_count(len(runs), 'trial')}: {names}{more}. To "
        f"send them: surestep track replay {shlex.quote(str(study))} --to {tracker}"
    )
