"""The numbers of the page that compares runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from surestep.base.errors import CheckpointError, RunError, SurestepError
from surestep.base.paths import is_address
from surestep.base.version import VERSION
from surestep.config.metric_direction import direction_of
from surestep.record.checkpoint.reader import CheckpointInfo
from surestep.record.progress import state_of
from surestep.record.records import Records, load_records
from surestep.record.run import Run
from surestep.reports.align import align, choose_ranges
from surestep.reports.charts import MOST, list_charts
from surestep.reports.curves import Chart, Curve
from surestep.reports.describe_run import REPORT_FORMAT, describe_axis

_SEED = "seed"
_UNSEEN = ("model", "code of the recipe")  # have a hash that means little to a reader
_NAMED, _LONGEST = 3, 60  # options in the name of a group, and characters of each
MOST_RUNS = 500


@dataclass(frozen=True)
class RunRead:
    """What is known of one of the runs."""

    name: str
    state: str
    config: Mapping[str, Any]
    records: Records
    charts: Sequence[Chart]
    best: CheckpointInfo | None
    monitor: tuple[str, str] | None


def describe_runs(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Return the numbers of the page that compares runs; docs/report.md has them.

    A run that cannot be read is left out, and named with the reason.

    Args:
        runs: by folder or address; at least two.

    Returns:
        What JSON can hold, and the arrays of curves. A number that is not finite is None.

    Raises:
        RunError: none of the runs can be read, or there are too many.
    """
    if len(runs) > MOST_RUNS:
        raise RunError(
            f"{len(runs)} runs are too many for a page, which can have {MOST_RUNS}. Name the runs "
            "to compare."
        )
    reads, problems = [], {}
    for name, run in runs.items():
        try:
            reads.append(read_run(name, run))
        except SurestepError as error:
            problems[name] = str(error)
    if not reads:
        raise RunError(f"None of {len(runs)} runs can be read. {next(iter(problems.values()))}")
    return compare_runs(reads, problems)


def compare_runs(reads: Sequence[RunRead], problems: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers of the page that compares runs.

    Args:
        reads: the runs that could be read.
        problems: why the others could not, by name.
    """
    options = [_list_options(read.config) for read in reads]
    names = sorted({name for known in options for name in known})
    different = [name for name in names if len({_key(known.get(name)) for known in options}) > 1]
    groups = _group(options, different)
    metrics = [_measure(read) for read in reads]
    return {
        "format": REPORT_FORMAT,
        "version": VERSION,
        "kind": "runs",
        "run": f"{len(reads)} runs",
        "runs": [
            {
                "name": read.name,
                "state": read.state,
                "group": group,
                "step": int(read.records.trained[-1]) if len(read.records.trained) else None,
                "seconds": read.records.seconds,
                "best_step": None if read.best is None else read.best.step,
                "metrics": measured,
                "options": {name: known.get(name) for name in different},
            }
            for read, group, measured, known in zip(
                reads, groups.of_runs, metrics, options, strict=True
            )
        ],
        "groups": groups.labels,
        "options": different,
        "problems": problems,
        "winners": list(_list_winners(reads, groups.of_runs, metrics)),
        "charts": _list_charts(reads),
        "axes": [describe_axis(read.records, read.config) for read in reads],
    }


def read_run(name: str, run: Run, records: Records | None = None) -> RunRead:
    """Return what is known of a run.

    Args:
        name: its folder or its address.
        run: may be running.
        records: of the run, if they were read already.

    Raises:
        RunError: a file of the run is missing, or cannot be read.
    """
    config, status = run.config, run.status
    records = load_records(run.path) if records is None else records
    try:
        best = run.find_checkpoint("best")
    except CheckpointError:
        best = None
    state = str(status["status"]) if is_address(name) else state_of(run.path, status)
    charts = list_charts(records, config.get("decided", {}))
    return RunRead(name, state, config, records, charts, best, run.monitor)


def _list_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can differ between runs, by name."""
    recipe = config["recipe"]
    known = {
        "recipe": recipe.get("name"),
        "code of the recipe": str(recipe.get("sha256", ""))[:8],
        "model": config.get("model"),
        **{f"task.{name}": value for name, value in config.get("task_defaults", {}).items()},
        **{f"task.{name}": value for name, value in config["task"].items()},
        **config.get("decided", {}),
        **config["config"],
    }
    return known


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True)
class _Groups:
    """Runs with the same options, except the seed.

    Attributes:
        labels: the options of each group that distinguish it.
        of_runs: the number of the group of each run.
    """

    labels: list[str]
    of_runs: list[int]


def _group(options: Sequence[Mapping[str, Any]], different: Sequence[str]) -> _Groups:
    names = [name for name in different if name != _SEED]
    keys = [tuple(_key(known.get(name)) for name in names) for known in options]
    order = list(dict.fromkeys(keys))
    shown = sorted(names, key=lambda name: (name != "recipe", name in _UNSEEN))
    labels = [_label(options[keys.index(key)], shown) for key in order]
    for at, label in enumerate(labels):
        if same := labels[:at].count(label):
            labels[at] = f"{label} ({same + 1})"
    return _Groups(labels, [order.index(key) for key in keys])


def _label(options: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of the options that distinguish a group, in a line."""
    texts = [f"{name}={options.get(name)}"[:_LONGEST] for name in names[:_NAMED]]
    if len(names) > _NAMED:
        texts.append("...")
    return ", ".join(texts) or "all runs"


def _measure(read: RunRead) -> dict[str, float | None]:
    """Return the metrics at the best checkpoint, or else in the last evaluation."""
    history, best = read.records.history, read.best
    found: dict[str, float | None] = {}
    for name, (rows, values) in history.columns.items():
        split, _, metric = name.partition("/")
        if not metric or split in ("train", "lr") or not len(values):
            continue
        steps = history.steps[rows]
        at = np.flatnonzero(steps == best.step) if best is not None else steps[:0]
        value = float(values[at[0] if len(at) else -1])
        found[name] = value if np.isfinite(value) else None
    for result in sorted(history.final, key=lambda result: result.which == "best"):
        for name, value in result.metrics.items():
            if isinstance(value, float) and (result.which == "best" or name not in history.columns):
                found[name] = value if np.isfinite(value) else None
    return found


def _list_winners(
    reads: Sequence[RunRead],
    groups: Sequence[int],
    metrics: Sequence[Mapping[str, float | None]],
) -> Iterator[dict[str, Any]]:
    """Yield which group is the best by each metric, and whether the lead is beyond the seeds."""
    monitors = {read.monitor for read in reads if read.monitor is not None}
    directions = dict(monitors)
    for name in dict.fromkeys(name for known in metrics for name in known):
        mode = directions.get(name) or direction_of(name.partition("/")[2])
        values: dict[int, list[float]] = {}
        for group, known in zip(groups, metrics, strict=True):
            if (value := known.get(name)) is not None:
                values.setdefault(group, []).append(value)
        if mode is None or len(values) < 2:
            continue
        sign = 1.0 if mode == "min" else -1.0
        first, second, *_ = sorted(values, key=lambda group: sign * fmean(values[group]))
        spreads = [stdev(values[at]) for at in (first, second) if len(values[at]) > 1]
        lead = abs(fmean(values[first]) - fmean(values[second]))
        without, second_without = (groups.count(at) - len(values[at]) for at in (first, second))
        spread = max(spreads) if len(spreads) == 2 else None
        yield {
            "metric": name,
            "mode": mode,
            "group": first,
            "mean": fmean(values[first]),
            "runs": len(values[first]),
            "without": without,
            "second": second,
            "second_mean": fmean(values[second]),
            "second_runs": len(values[second]),
            "second_without": second_without,
            "lead": lead,
            "spread": spread,
            "is_clear": None if spread is None or without or second_without else lead > spread,
        }


def _list_charts(reads: Sequence[RunRead]) -> list[dict[str, Any]]:
    """Return a chart of each column, with a curve of each run that has it."""
    by_column: dict[str, dict[int, Curve]] = {}
    about: dict[str, dict[str, Any]] = {}
    for number, read in enumerate(reads):
        for chart in read.charts:
            for curve in chart.curves:
                by_column.setdefault(curve.name, {})[number] = curve
                about[curve.name] = {"unit": chart.unit, "is_noisy": chart.is_noisy}
    shown = list(by_column.items())[:MOST]
    ranges = choose_ranges(sum(len(curves) for _, curves in shown))
    return [{"title": name, **about[name], **align(curves, ranges)} for name, curves in shown]
