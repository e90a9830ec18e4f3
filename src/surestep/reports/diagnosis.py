"""What is wrong with a run: the states of its curve, findings, incidents, and memory."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

from surestep.base.errors import CheckpointError, RunError
from surestep.base.paths import is_address
from surestep.doctor.curves.causes import list_causes
from surestep.doctor.curves.name import name_curve
from surestep.doctor.curves.state import CurveState
from surestep.recipes.find import recipe_argument
from surestep.record.incident import Incident, incidents_of
from surestep.record.memory_report import memory_reports_of
from surestep.record.progress import read_progress
from surestep.record.records import Records
from surestep.record.run import Run
from surestep.trainer.review.read_curve import read_curve

_VERSION = 1  # of the JSON form


def diagnose(opened: Run, name: str, records: Records | None = None) -> dict[str, Any]:
    """Return what is known of a run, as `surestep diagnose RUN --json` has it.

    Args:
        opened: may be running.
        name: its folder or its address, for commands.
        records: of the run, if they were read already.

    Raises:
        RunError: a file of the run is missing, or cannot be read.
    """
    config, status = opened.config, opened.status
    try:
        progress = read_progress(opened.path, config, status)
    except CheckpointError as error:
        raise RunError(str(error)) from error
    curve = read_curve(opened, records)
    states = () if curve is None else name_curve(curve)
    # The lock of a run in a mirror is on another machine.
    state = str(status["status"]) if is_address(name) else progress.state
    return {
        "version": _VERSION,
        "run": name,
        "state": state,
        "step": progress.step,
        "total_steps": progress.total_steps,
        "curve": [_describe_state(state, opened, name) for state in states],
        "findings": status.get("findings", []),
        "incidents": [
            _describe_incident(incident, opened, name) for incident in incidents_of(opened.path)
        ],
        "memory": [
            {"step": one.step, "path": f"{name}/{one.path.name}", "text": one.text}
            for one in memory_reports_of(opened.path)
        ],
    }


def _describe_state(state: CurveState, opened: Run, name: str) -> dict[str, Any]:
    recipe, names = opened.config["recipe"], {}
    if recipe:
        names = {"recipe": recipe_argument(recipe), "script": recipe["path"]}
    causes = list_causes(state, opened.config, run=name, **names)
    return {
        **asdict(state),
        "title": state.title,
        "is_healthy": state.is_healthy,
        "causes": list(map(asdict, causes)),
    }


def _describe_incident(incident: Incident, opened: Run, name: str) -> dict[str, Any]:
    """Return an incident with the command that runs its step again."""
    path = f"{name}/{incident.path.relative_to(opened.path).as_posix()}"
    quoted = shlex.quote(path)
    if is_address(name):
        replay = f"surestep mirror fetch {shlex.quote(name)}"
    elif opened.config["recipe"]:
        replay = f"surestep replay {quoted}"
    else:
        replay = f"surestep.replay({path!r}, task)"
    text = str(incident.record["text"])
    return {"step": incident.step, "path": path, "text": text, "command": replay}
