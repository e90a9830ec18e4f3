"""`surestep diagnose RUN`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import tyro

from surestep.base.errors import RunError
from surestep.base.paths import is_address
from surestep.base.text import one_line, print_escaped, print_json
from surestep.cli.open_run import open_run
from surestep.cli.parse import command
from surestep.doctor.curves.causes import list_causes
from surestep.doctor.curves.name import name_curve
from surestep.doctor.curves.state import CurveState
from surestep.recipes.find import recipe_argument
from surestep.record.incident import Incident, incidents_of
from surestep.record.io import dumps
from surestep.record.run import Run
from surestep.record.runs import newest_run, summarize
from surestep.trainer.review.read_curve import read_curve

_WIDTH = 100
_RUNS = Path("runs")
_VERSION = 1  # of the JSON form
_MANUAL = "Its steps are manual: the sum of their losses has no curve that could be named."


@command("diagnose")
def run(
    folder: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None, /, *, json: bool = False
) -> int:
    """Name the curve of a run, with the usual causes in the order to try.

    It also lists the findings of the run, and its steps that were not finite. The run may be
    running.

    Args:
        folder: Run folder, or the address of its mirror; by default the newest run in runs.
        json: Print the result as JSON.
    """
    name = str(newest_run(_RUNS)) if folder is None else folder
    with open_run(name) as opened:
        result = _diagnose(opened, name)
    if json:
        print_json(dumps(result, indent=1))
    else:
        print_escaped("\n".join(_format(result)))
    return 0


def _diagnose(opened: Run, name: str) -> dict[str, Any]:
    """Return what is known of a run, as the JSON form has it."""
    summary = summarize(opened.path)
    if summary.problem:
        raise RunError(summary.problem)
    status, curve = opened.status, read_curve(opened)
    states = () if curve is None else name_curve(curve)
    # The lock of a run in a mirror is on another machine.
    state = str(status["status"]) if is_address(name) else summary.state
    return {
        "version": _VERSION,
        "run": name,
        "state": state,
        "step": summary.step,
        "total_steps": summary.total_steps,
        "curve": [_describe_state(state, opened, name) for state in states],
        "findings": status.get("findings", []),
        "incidents": [
            _describe_incident(incident, opened, name) for incident in incidents_of(opened.path)
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


def _format(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that are printed."""
    of = "" if result["total_steps"] is None else f" of {result['total_steps']:,}"
    at = "" if result["step"] is None else f", step {result['step']:,}{of}"
    yield f"{one_line(result['run'])}: {result['state']}{at}"
    if not result["curve"]:
        yield f"\n{_MANUAL}"
    for state in result["curve"]:
        yield f"\n{state['title']}"
        yield _wrap(state["message"], 2)
        if state["causes"] and not state["is_healthy"]:
            yield "\n  Usual causes, in the order to try:"
            for number, cause in enumerate(state["causes"], 1):
                yield _wrap(cause["text"], 5, f"  {number}. ")
                if cause["command"]:
                    yield f"       {cause['command']}"
    if result["findings"]:
        yield "\nFindings of the run; `surestep explain RULE` explains a rule:"
    for finding in result["findings"]:
        label = " ".join(filter(None, (finding["rule"], finding.get("name"))))
        text = f"{label} ({finding['severity']}): {finding['message']} {finding['fix']}"
        yield _wrap(one_line(text), 4, "  - ")
    if result["incidents"]:
        yield "\nSteps that were not finite, with what runs them again:"
    for incident in result["incidents"]:
        yield _wrap(one_line(incident["text"]), 4, "  - ")
        yield f"    {one_line(incident['command'])}"


def _wrap(text: str, indent: int, first: str | None = None) -> str:
    start = " " * indent if first is None else first
    lines = wrap(text, _WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join([start + lines[0], *(" " * indent + line for line in lines[1:])])
