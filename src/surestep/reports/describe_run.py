"""The numbers of the page of a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from surestep.base.errors import CheckpointError
from surestep.base.paths import is_address
from surestep.base.version import VERSION
from surestep.record.checkpoint.discovery import scan_checkpoints
from surestep.record.io import read_json
from surestep.record.records import Records, load_records
from surestep.record.run import Run
from surestep.record.schemas import ENVIRONMENT, PLAN_ENTRIES, PROOF, PROVED, UNDOING
from surestep.reports.charts import MOST, list_charts, list_layers
from surestep.reports.curves import (
    RANGES,
    Chart,
    Steps,
    Values,
    choose_windows,
    find_spikes,
    thin_chart,
)
from surestep.reports.decision_regions import describe_regions
from surestep.reports.diagnosis import diagnose
from surestep.reports.predictions import describe_predictions
from surestep.reports.proof import describe_proof
from surestep.reports.range_tests import describe_range_tests
from surestep.reports.tuned import describe_tuned

REPORT_FORMAT = 1
_AXIS_POINTS = 500
_LONG = 2 * RANGES  # values, from which on a curve has fewer points in the page
_LONG_CURVES = 20  # of which each has all ranges; more share them
_DENSE = 0.9  # of the steps: then a curve has a value in each
_MOST_MARKS = 1000  # of each kind
_MARKS = {"checkpoint", "evaluation", "incident", "skipped", "spike", "branch", *UNDOING}


def describe_run(run: Run, name: str) -> dict[str, Any]:
    """Return the numbers of the page of a run, whatever state it is in; docs/report.md has them.

    Args:
        run: may be running.
        name: its folder or its address, for commands.

    Returns:
        What JSON can hold, and the arrays of curves. A number that is not finite is None.

    Raises:
        RunError: a file of the run is missing, or cannot be read.
    """
    records = load_records(run.path)
    return describe_numbers(run, name, records) | describe_charts(run, records)


def describe_numbers(run: Run, name: str, records: Records) -> dict[str, Any]:
    """Return the numbers of the page of a run, except those that charts draw.

    Args:
        run: may be running.
        name: its folder or its address, for commands.
        records: of the run.

    Raises:
        RunError: a file of the run is missing, or cannot be read.
    """
    config, status = run.config, run.status
    found = diagnose(run, name, records)
    plan = _read(run, "plan.json", PLAN_ENTRIES, [])
    environment = _read(run, "environment.json", ENVIRONMENT, {})
    proved = describe_proof(_read(run, PROOF, PROVED, {}), config, environment)
    return {
        "format": REPORT_FORMAT,
        "version": VERSION,
        "kind": "run",
        "run": name if is_address(name) else run.name,
        "state": found["state"],
        "reason": str(status.get("reason", "")),
        "step": found["step"],
        "total_steps": found["total_steps"],
        "facts": [
            *_list_facts(config, config.get("decided", {}), records),
            *([["proved", proved]] if proved else []),
        ],
        "best": _describe_best(run, records),
        "time": _describe_time(records, status),
        "curve": found["curve"],
        "findings": found["findings"] or list(_list_findings(records)),
        "incidents": found["incidents"],
        "memory": found["memory"],
        "commands": _list_commands(run, name, found["state"]),
        "final": [
            {"step": one.step, "which": one.which, "metrics": _numbers(one.metrics)}
            for one in records.history.final
        ],
        "changes": [
            {"step": event.get("step"), **change}
            for event in records.events
            if event["event"] == "changes"
            for change in event.get("changes", ())
            if isinstance(change, dict)
        ],
        "predictions": describe_predictions(run, plan),
        "regions": describe_regions(records, None if run.monitor is None else run.monitor[0]),
        "range_tests": describe_range_tests(records.events),
        "tuned": describe_tuned(config),
        "plan": plan,
        "config": {key: config[key] for key in ("config", "task", "data") if config.get(key)},
        "environment": environment,
    }


def describe_charts(run: Run, records: Records) -> dict[str, Any]:
    """Return the curves, the axes and the marks of the charts of a run.

    Raises:
        RunError: a file of the run is missing, or cannot be read.
    """
    charts = [*list_charts(records, run.config.get("decided", {})), *list_layers(records)]
    marks = list(list_marks(records))
    shown, omitted = charts[:MOST], charts[MOST:]
    return {
        "axes": [describe_axis(records, run.config)],
        "charts": _thin(shown, marks, len(records.trained)),
        "omitted_charts": [chart.title for chart in omitted[:MOST]],
        "omitted": len(omitted),
        "marks": _limit(marks),
    }


def _thin(
    charts: Sequence[Chart], marks: Sequence[Mapping[str, Any]], steps: int
) -> list[dict[str, Any]]:
    curves = [curve for chart in charts for curve in chart.curves]
    long = [curve for curve in curves if len(curve.steps) > _LONG]
    dense = sum(len(curve.steps) > _DENSE * steps for curve in long)
    spikes = [step for curve in long[:2] for step in find_spikes(curve)]
    near = [mark for mark in marks if mark["kind"] != "evaluation"]
    near.sort(key=lambda mark: (mark["kind"] == "checkpoint", -mark["step"]))
    windows = choose_windows([*spikes, *(mark["step"] for mark in near)], dense)
    ranges = RANGES if len(long) <= _LONG_CURVES else max(50, RANGES * _LONG_CURVES // len(long))
    return [thin_chart(chart, windows, ranges) for chart in charts]


def _list_facts(
    config: Mapping[str, Any], options: Mapping[str, Any], records: Records
) -> list[list[str]]:
    """Return what was trained, by label."""
    splits = {"training data": _find(config, "data", "train samples")}
    for split in _find(config, "validation") or ():
        splits[f"{split} data"] = _find(config, "validation", split, "samples")
    facts = {
        "recipe": config["recipe"].get("name") or "a script",
        "task": ", ".join(f"{key}={value}" for key, value in config["task"].items()),
        "model": _find(config, "model"),
        "loss": _find(config, "loss", "called"),
        **{
            name: f"{count:,} {'sample' if count == 1 else 'samples'}"
            for name, count in splits.items()
            if isinstance(count, int)
        },
        "optimizer": f"{options.get('optim.name')}, lr {options.get('optim.lr')}"
        if options.get("optim.name")
        else None,
        "batch size": options.get("batch_size"),
        "micro-batch size": _describe_sizes(records),
        "precision": options.get("precision"),
        "strategy": options.get("parallel.strategy"),
        "device": _find(config, "machine", "device"),
        "parent": _describe_parent(config.get("from")),
    }
    return [[label, str(value)] for label, value in facts.items() if value]


def _describe_sizes(records: Records) -> str:
    """Return the sizes that a run found to fit in memory, each with its first step; "" if none."""
    sizes = [
        event
        for event in records.events
        if event["event"] == "micro_batch" and event.get("split") is None
    ]
    texts = [f"{event['size']:,} from step {event['step']:,} on" for event in sizes[-3:]]
    return ", ".join(texts) + (f" ({sizes[-1]['why']})" if sizes else "")


def _find(found: Any, *keys: str) -> Any:
    """Return what is at some keys of nested dicts; None if a file of anyone has it otherwise."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _list_findings(records: Records) -> Iterator[Mapping[str, Any]]:
    """Yield the findings of a run that has not ended, which only its events have."""
    seen = set()
    for event in records.events:
        texts = tuple(event.get(name) for name in ("rule", "severity", "message", "fix"))
        is_new = event["event"] == "finding" and texts not in seen
        if is_new and all(isinstance(text, str) for text in texts):
            seen.add(texts)
            yield event


def _describe_parent(parent: Mapping[str, Any] | None) -> str | None:
    return None if parent is None else f"step {parent['step']} of {parent['run']}"


def _describe_best(run: Run, records: Records) -> dict[str, Any] | None:
    """Return the best value of validation.metric, and its checkpoint; None without evaluations."""
    if run.monitor is None:
        return None
    metric, mode = run.monitor
    known = {"metric": metric, "mode": mode}
    try:
        best = run.find_checkpoint("best")
    except CheckpointError:
        best = None
    if best is not None and (value := best.metrics.get(metric)) is not None:
        return {**known, "step": best.step, "path": best.path.name, **_numbers({"value": value})}
    rows, values = records.history.columns.get(metric, ([], np.array([])))
    if not np.isfinite(values).any():
        return None
    at = int(
        np.nanargmin(np.where(np.isfinite(values), values if mode == "min" else -values, np.nan))
    )
    return {
        **known,
        "step": int(records.history.steps[rows[at]]),
        "path": None,
        "value": float(values[at]),
    }


def _describe_time(records: Records, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the seconds of each part of the run; None if they were not recorded."""
    evaluations = [one for one in records.events if one["event"] == "evaluation"]
    saves = [one for one in records.events if one["event"] == "checkpoint"]
    parts = {
        "computing": records.seconds - records.data_wait_s,
        "waiting for data": records.data_wait_s,
        "evaluating": _add_up(evaluations, "seconds"),
        "waiting for checkpoints": _add_up(saves, "blocked_s"),
    }
    known = [seconds for seconds in parts.values() if seconds is not None]
    parts["starting, and the rest"] = max(0.0, records.wall_s - sum(known))
    return [{"name": name, "seconds": seconds} for name, seconds in parts.items()]


def _add_up(events: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the sum of a number of all events; None if one of them lacks it."""
    known = [event.get(name) for event in events]
    return None if None in known else float(sum(map(float, filter(None, known))))


def _list_commands(run: Run, name: str, state: str) -> list[dict[str, str]]:
    """Return what can be typed next."""
    typed, commands = shlex.quote(name), {}
    if is_address(name):
        commands["Copy the run to this machine"] = f"surestep mirror fetch {typed}"
    elif run.config["recipe"]:
        if state in ("stopped", "killed", "failed"):
            commands["Resume it"] = f"surestep resume {typed}"
        if scan_checkpoints(run.checkpoints).good:
            commands["Evaluate its best model"] = f"surestep evaluate {typed}"
    commands["Compare it with another run"] = f"surestep report {typed} OTHER_RUN"
    return [{"what": what, "command": command} for what, command in commands.items()]


def describe_axis(records: Records, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what each step is in other units, before the first and at some of the log points.

    Args:
        records: of the run.
        config: the content of its config.json.

    Returns:
        "steps", and at their ends "epoch", which has fractions, and "samples" and "seconds" of
        training since the start of this run. All are empty without log points.
    """
    points = records.log_points
    count = len(points["step"])
    if not count:
        return {name: np.array([]) for name in ("steps", "epoch", "samples", "seconds")}
    at = np.unique(np.linspace(0, count, min(count + 1, _AXIS_POINTS)).astype(int))
    steps = np.append(records.trained[0] - 1, points["step"].astype(np.int64))
    known = {name: np.nan_to_num(points[name]) for name in ("samples", "seconds")}
    sums = {name: np.append(0.0, np.cumsum(values)) for name, values in known.items()}
    samples, seen = _find(config, "data", "train samples"), sums["samples"][-1]
    growth = max(1.0, samples / seen) if type(samples) is int and seen else 1.0
    epochs = _count_epochs(records, steps, growth)
    return {name: values[at] for name, values in {"steps": steps, "epoch": epochs, **sums}.items()}


def _count_epochs(records: Records, steps: Steps, growth: float) -> Values:
    """Return how many epochs are done at each step.

    Args:
        records: of a run with log points.
        steps: before the first log point, and the last of each.
        growth: how many times its steps an epoch has that is the only one, and has not ended.
    """
    numbers, firsts = np.unique(records.log_points["epoch"], return_index=True)
    bounds = np.append(steps[firsts], steps[-1]).astype(np.float64)
    sizes = np.diff(bounds)
    ends = [event.get("epoch") for event in records.events if event["event"] == "end"]
    has_ended = bool(ends) and ends[-1] == numbers[-1] + 1
    usual = max(sizes if has_ended else sizes[:-1], default=growth * sizes[0])
    if not has_ended:
        bounds[-1] = max(bounds[-1], bounds[-2] + usual)
    if steps[0] > 0:  # a run from another one may start within an epoch
        bounds[0] = min(bounds[0], bounds[1] - usual)
    done: Values = np.interp(steps, bounds, np.append(numbers, numbers[-1] + 1))
    return done


def list_marks(records: Records) -> Iterator[dict[str, Any]]:
    """Yield what happened at a step: checkpoints, resumes, incidents, skipped steps, and so on."""
    for event in records.events:
        if event["event"] in _MARKS and type(event.get("step")) is int:
            yield {"kind": event["event"], "step": event["step"], "text": _describe_mark(event)}


def _describe_mark(event: Mapping[str, Any]) -> str:
    kind, step = event["event"], f"step {event['step']:,}"
    if kind in UNDOING:
        return f"{kind} from {step}"
    if kind == "skipped":
        return f"skipped {step}: {event['reason']}"
    return f"{kind} of {step}"


def _limit(marks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest marks of each kind."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for mark in marks:
        by_kind.setdefault(mark["kind"], []).append(mark)
    return [mark for found in by_kind.values() for mark in found[-_MOST_MARKS:]]


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers; those that are not finite are None, and tables are left out."""
    return {
        name: float(value) if np.isfinite(float(value)) else None
        for name, value in values.items()
        if isinstance(value, (int, float, str)) and not isinstance(value, bool)
    }


def _read(run: Run, name: str, schema: Any, missing: Any) -> Any:
    path = run.path / name
    return read_json(path, schema) if os.path.lexists(path) else missing
