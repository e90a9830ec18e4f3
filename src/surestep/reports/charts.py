"""Which charts a run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from surestep.record.records import Records
from surestep.reports.curves import Chart, Curve

MOST = 100  # charts of a page
_OWN = {"time", "train/loss", "grad_norm", "lr"}


def list_charts(records: Records, options: Mapping[str, Any]) -> list[Chart]:
    """Return the charts of a run except those of layers, the most important first.

    Args:
        records: of the run.
        options: that the run was trained with, by full name.
    """
    charts = [
        *_list_measures(records),
        *_list_rates(records),
        *_list_norms(records, options),
        *_list_costs(records),
    ]
    return [chart for chart in charts if chart.curves]


def _read(records: Records, column: str) -> Curve:
    rows, values = records.history.columns[column]
    return Curve(column, records.history.steps[rows], values)


def _list_measures(records: Records) -> Iterator[Chart]:
    """Yield the losses, each metric with all splits, and what the Task logged."""
    by_title: dict[str, list[Curve]] = {"loss": [_read(records, "train/loss")]}
    for column in records.history.columns:
        name = column.partition("/")[2]
        if name and column not in _OWN and not column.startswith("lr/"):
            by_title.setdefault(name, []).append(_read(records, column))
    for title, curves in by_title.items():
        yield Chart(title, [curve for curve in curves if len(curve.steps)])


def _list_rates(records: Records) -> Iterator[Chart]:
    groups = [name for name in records.history.columns if name == "lr" or name.startswith("lr/")]
    curves = [curve for name in groups if len((curve := _read(records, name)).steps)]
    yield Chart("learning rate", curves, is_noisy=False)


def _list_norms(records: Records, options: Mapping[str, Any]) -> Iterator[Chart]:
    curve, limit = _read(records, "grad_norm"), options.get("max_grad_norm")
    limits = {"clipped above": float(limit)} if isinstance(limit, (int, float)) else {}
    about = "The norm of all gradients before they are clipped." if limits else ""
    yield Chart("gradient norm", [curve] if len(curve.steps) else [], "", limits, about)


def _list_costs(records: Records) -> Iterator[Chart]:
    points = records.log_points
    steps = points["step"].astype(np.int64)
    seconds = np.where(points["seconds"] > 0, points["seconds"], np.nan)
    about = "Of training alone, in each log point; evaluations and saving are not in it."
    for title, unit, values in (
        ("samples per second", "per second", points["samples"] / seconds),
        ("share of time waiting for data", "share", points["data_wait_s"] / seconds),
        ("peak memory", "bytes", points["peak_memory"]),
    ):
        known = ~np.isnan(values)
        curves = [Curve(title, steps[known], values[known])] if known.any() else []
        yield Chart(title, curves, unit, about=about if unit != "bytes" else "")


def list_layers(records: Records) -> Iterator[Chart]:
    """Yield the charts of the norms of the layers that were recorded."""
    titles = {
        "grad_norm": "gradient norm of each layer",
        "weight_norm": "weight norm of each layer",
        "update_norm": "norm of the update of each layer",
    }
    for kind, title in titles.items():
        if layers := records.layers.get(kind):
            yield Chart(title, [Curve(name, *column) for name, column in layers.items()])
