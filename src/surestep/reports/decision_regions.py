"""What pages and animations show of the decision regions of a run."""

from __future__ import annotations

import base64
import colorsys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surestep.base.png import encode_png
from surestep.record.decision_regions import UNKNOWN, DecisionRegions, decode_regions
from surestep.record.records import Records

Pixels = NDArray[np.uint8]
MOST_FRAMES = 100
_MOST_BYTES = 400_000  # of the pictures of a page
_FAINTEST, _STRONGEST = 0.05, 0.7  # opacity of a guess and of a certain class, below the points
# Those of page.css in the light theme; other classes have colors between them.
_COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#b5538a"),
    *("#b58900", "#3a8fc4", "#7a5195", "#5d6b7e"),
)
_GOLDEN = 0.618  # of the circle of hues, between one of the other colors and the next


def read_regions(records: Records) -> tuple[list[DecisionRegions], int]:
    """Return the decision regions of a run by step, and how many are damaged."""
    found, damaged = [], 0
    for _, event in sorted(records.regions.items()):
        try:
            found.append(decode_regions(event))
        except ValueError:
            damaged += 1
    return found, damaged


def read_points(records: Records) -> dict[str, list[Any]]:
    """Return the samples that are shown: "x", "y" and "labels", -1 for those without a class."""
    points: Mapping[str, Any] = {"x": [], "y": [], "labels": []}
    for event in records.events:
        if event["event"] == "decision_points":
            points = event
    rows = zip(points["x"], points["y"], points["labels"], strict=False)
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    return dict(zip(("x", "y", "labels"), columns, strict=True))


def describe_regions(records: Records, metric: str | None) -> dict[str, Any] | None:
    """Return the decision regions that a page shows; None if the run recorded none.

    Args:
        records: of the run.
        metric: that decides which evaluation is the best; None if there is none.

    Returns:
        "frames" by step, each with "step", "measured", the ends of "x" and "y", the "value" of the
        metric and a "png" of the cells in base64; "metric"; "points" as `read_points`; the "colors"
        of the classes; and how many evaluations are "left_out" since the page would be too large,
        and how many are "damaged".
    """
    if not records.regions:
        return None
    regions, damaged = read_regions(records)
    values = _read_metric(records, metric)
    frames = [
        {
            **{"step": one.step, "measured": one.measured, "value": values.get(one.step)},
            **{"x": one.x, "y": one.y, "png": _encode_picture(one)},
        }
        for one in spread(regions, MOST_FRAMES)
    ]
    size = sum(len(frame["png"]) for frame in frames)
    frames = spread(frames, max(2, _MOST_BYTES * len(frames) // max(1, size)))
    return {
        "frames": frames,
        "metric": metric,
        "points": read_points(records),
        "colors": choose_colors(max((one.n_classes for one in regions), default=0)),
        "left_out": len(regions) - len(frames),
        "damaged": damaged,
    }


def _read_metric(records: Records, metric: str | None) -> dict[int, float]:
    """Return the finite values of a metric by step."""
    history = records.history
    if metric is None or metric not in history.columns:
        return {}
    rows, values = history.columns[metric]
    found = zip(history.steps[rows].tolist(), values.tolist(), strict=True)
    return {step: value for step, value in found if np.isfinite(value)}


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many items, evenly, with the first and the last one."""
    if len(items) <= most:
        return list(items)
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, most)]


def choose_colors(count: int) -> list[str]:
    """Return the color of each class, such as "#0072b2"."""
    colors = list(_COLORS[:count])
    for number in range(len(colors), count):
        red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN % 1, 0.4, 0.6)
        colors.append(f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}")
    return colors


def color_cells(regions: DecisionRegions) -> Pixels:
    """Return the color of each cell, (cells, cells, 4): its opacity is the confidence.

    It is that of the classes above that of a guess. A cell whose class is not known has none.
    """
    colors = choose_colors(regions.n_classes)
    table = np.zeros((UNKNOWN + 1, 3), np.uint8)
    table[: len(colors)] = [list(bytes.fromhex(color[1:])) for color in colors]
    guess = 1 / regions.n_classes
    above = (regions.confidence / 255 - guess) / max(1 - guess, 1 / 255)
    opacity = np.rint(255 * (_FAINTEST + (_STRONGEST - _FAINTEST) * above.clip(0, 1)))
    opacity[regions.classes == UNKNOWN] = 0
    return np.dstack([table[regions.classes], opacity.astype(np.uint8)])


def _encode_picture(regions: DecisionRegions) -> str:
    pixels = color_cells(regions)
    return base64.b64encode(encode_png(pixels.tobytes(), *pixels.shape)).decode()
