"""Runs the parts one after the other, each in a process with a time limit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu.parts import MINUTES, START_S, Part

_LAST = 400  # characters of the errors of a process


@dataclass
class PartResult:
    """What a part found.

    Attributes:
        name: of the part.
        title: what it measures.
        rows: its results, in the order in which they arrived.
        missing: why there are no results, or not all; "" if it ended.
        seconds: that it took.
    """

    name: str
    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""
    seconds: float = 0.0


Command = Callable[[Part, float], Sequence[str]]  # of a part and the seconds of its work


def run_parts(
    parts: Sequence[Part],
    command: Command,
    *,
    seconds: float,
    has_gpu: bool,
    environment: Mapping[str, str],
    on_result: Callable[[list[PartResult]], object],
) -> list[PartResult]:
    """Run the parts in order until the time is over; call `on_result` after each of them."""
    end, results = time.monotonic() + seconds, list[PartResult]()
    for part in parts:
        left = end - time.monotonic()
        result = PartResult(part.name, part.title, missing=_why_not(part, left, has_gpu=has_gpu))
        if not result.missing:
            work = min(part.work_s * min(1.0, seconds / 60 / MINUTES), left - START_S)
            run_part(result, command(part, work), min(left, work + START_S), environment)
        results.append(result)
        on_result(results)
    return results


def run_part(
    result: PartResult, command: Sequence[str], limit_s: float, environment: Mapping[str, str]
) -> None:
    """Run one process; note the lines that it printed, also if it fails or is ended."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
        if process.returncode:
            lines = errors.strip().splitlines() or [f"it ended with code {process.returncode}"]
            result.missing = f"it failed: {lines[-1][-_LAST:]}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # also the processes that it started
        output, _ = process.communicate()
        result.missing = f"it was ended after {limit_s:.0f} s"
    result.rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    result.seconds = time.monotonic() - began


def as_json(results: Sequence[PartResult]) -> list[dict[str, Any]]:
    """Return the results as JSON takes them."""
    return [asdict(result) for result in results]


def _why_not(part: Part, left_s: float, *, has_gpu: bool) -> str:
    if part.needs_gpu and not has_gpu:
        return "it needs a GPU"
    if part.package and find_spec(part.package) is None:
        return f"{part.package} is not installed"
    if left_s <= START_S:
        return "no time was left"
    return ""


def python_command(part: Part, work_s: float, device: str) -> list[str]:
    """Return the command of a part."""
    arguments = ["--device", device, "--seconds", f"{work_s:.2f}"]
    return [sys.executable, "-m", "benchmarks.gpu.measure", part.name, *arguments]
