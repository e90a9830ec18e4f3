"""`surestep diagnose RUN`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import tyro

from surestep.base.text import one_line, print_escaped, print_json
from surestep.cli.open_run import open_run
from surestep.cli.parse import command
from surestep.record.io import dumps
from surestep.record.runs import newest_run
from surestep.reports.diagnosis import diagnose

_WIDTH = 100
_RUNS = Path("runs")
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
        result = diagnose(opened, name)
    if json:
        print_json(dumps(result, indent=1))
    else:
        print_escaped("\n".join(_format(result)))
    return 0


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
    for report in result["memory"]:
        yield ""
        yield from map(one_line, report["text"].splitlines())
        yield f"More in {one_line(report['path'])}."


def _wrap(text: str, indent: int, first: str | None = None) -> str:
    start = " " * indent if first is None else first
    lines = wrap(text, _WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join([start + lines[0], *(" " * indent + line for line in lines[1:])])
