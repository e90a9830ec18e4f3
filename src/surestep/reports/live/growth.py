"""What the charts of the page of a run grow by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from surestep.record.records import Records
from surestep.reports.charts import MOST, list_charts, list_layers
from surestep.reports.curves import RANGES, Chart, Curve, thin_chart
from surestep.reports.describe_run import describe_axis, list_marks

MOST_POINTS = 2 * RANGES  # that a curve grows by
_Key = tuple[str, str]  # the title of a chart and the name of a curve


class Growth:
    """What a page has of each curve, so that it gets no point twice and not too many.

    Args:
        charts: what `describe_charts` returns, which the page has.
        options: that the run was trained with, by full name.
    """

    def __init__(self, charts: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._options = options
        self._titles = {chart["title"] for chart in charts["charts"]}
        self._last: dict[_Key, int] = {}
        self._ranges: dict[_Key, float] = {}  # for a value of a long curve
        self._added: Counter[_Key] = Counter()
        for chart in charts["charts"]:
            for curve in chart["curves"]:
                key = (chart["title"], curve["name"])
                self._last[key] = curve["last"]["step"]
                if len(curve["mean_steps"]):
                    self._ranges[key] = len(curve["mean_steps"]) / curve["count"]
        axis = charts["axes"][0]
        self._ends = {name: values[-1] if len(values) else 0 for name, values in axis.items()}
        steps, epochs = axis["steps"][-2:], axis["epoch"][-2:]
        self._epochs_of_step = (
            float(np.diff(epochs)[0] / np.diff(steps)[0]) if len(steps) > 1 else None
        )

    @property
    def is_full(self) -> bool:
        """Whether a curve has so many more points that it is time to thin the whole curve."""
        return max(self._added.values(), default=0) > MOST_POINTS

    def add(self, records: Records) -> dict[str, Any] | None:
        """Return what the charts grow by; None if a curve has one of these steps already.

        Args:
            records: of the events since the last call.
        """
        grown = []
        for chart in (*list_charts(records, self._options), *list_layers(records)):
            if chart.title in self._titles or len(self._titles) < MOST:
                self._titles.add(chart.title)
                grown.append(chart)
        known = [(chart.title, curve) for chart in grown for curve in chart.curves]
        if any(curve.steps[0] <= self._last.get((title, curve.name), -1) for title, curve in known):
            return None
        return {
            "charts": [self._thin(chart) for chart in grown],
            "axes": {"0": self._extend_axis(records)} if len(records.trained) else {},
            "marks": list(list_marks(records)),
        }

    def _thin(self, chart: Chart) -> dict[str, Any]:
        """Return a chart with as few points for a step as the page has."""
        curves = [self._thin_curve(chart, curve) for curve in chart.curves]
        return {**thin_chart(replace(chart, curves=()), (), 1), "curves": curves}

    def _thin_curve(self, chart: Chart, curve: Curve) -> dict[str, Any]:
        key, count = (chart.title, curve.name), len(curve.steps)
        ranges = math.ceil(count * self._ranges.get(key, 1))
        (thinned,) = thin_chart(replace(chart, curves=(curve,)), (), ranges)["curves"]
        self._last[key] = int(curve.steps[-1])
        self._added[key] += len(thinned["steps"])
        return dict(thinned)

    def _extend_axis(self, records: Records) -> dict[str, list[float]]:
        """Return what the last of some steps is in other units."""
        ends = {name: values[-1] for name, values in describe_axis(records).items()}
        if self._epochs_of_step is not None:  # these may be steps within an epoch
            number = records.log_points["epoch"][-1]
            more = (ends["steps"] - self._ends["steps"]) * self._epochs_of_step
            ends["epoch"] = np.clip(self._ends["epoch"] + more, number, number + 1)
        for name in ("samples", "seconds"):
            ends[name] += self._ends[name]
        self._ends = ends
        return {name: [float(value)] for name, value in ends.items()}
