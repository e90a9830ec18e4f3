"""The curves of range tests: as text for a terminal, and as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import plotext

from surestep.base.errors import ConfigError
from surestep.cli.text_charts import (
    build_figure,
    choose_marker,
    draw_points,
    paint,
    set_values,
    start_figure,
)
from surestep.reports.range_tests import find_range

if TYPE_CHECKING:
    from surestep.trainer.find_lr import LrRangeTest


def draw_curves(found: LrRangeTest, size: tuple[int, int], *, colors: bool) -> Iterator[str]:
    """Yield the lines of a chart of the loss over the learning rate, on a logarithmic axis.

    Args:
        found: the curves, and the rate, which has a vertical line.
        size: the characters of a line, and the lines of the axes.
        colors: whether the terminal shows colors.
    """
    start_figure(size)
    low, high = find_range([curve.losses for curve in found.curves])
    yield "loss over the learning rate"
    for number, (seed, curve) in enumerate(zip(found.seeds, found.curves, strict=True)):
        symbol, color = choose_marker(number, colors=colors)
        mark = paint("⣀⡠" if symbol == "braille" else symbol, color)
        finite = [
            (math.log10(rate), min(loss, high))
            for rate, loss in zip(curve.rates, curve.losses, strict=True)
            if math.isfinite(loss)
        ]
        hidden = "" if len(finite) == len(curve.losses) else ", then not finite"
        yield f"  {mark} seed {seed}: {len(finite)} steps{hidden}"
        if finite:
            draw_points([rate for rate, _ in finite], [loss for _, loss in finite], symbol, color)
    if found.lr is not None:
        at = math.log10(found.lr)
        heights = np.linspace(low, high, 2 * size[1]).tolist()
        draw_points([at] * len(heights), heights, "│", None)
        yield f"  │ suggestion: {found.lr:.2g}"
    ends = [
        math.log10(rate) for curve in found.curves for rate in (curve.rates[0], curve.rates[-1])
    ]
    first, last = min(ends), max(ends)
    x = plotext.figure.ruler("x")
    x.lim(first - 0.05, last + 0.05)
    decades = [*range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]
    x.ticks(decades, [f"{10.0**decade:g}" for decade in decades])
    set_values(low, high)
    yield from build_figure(colors=colors)


def plot_curves(found: LrRangeTest, path: Path) -> None:
    """Plot the curves to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    for seed, curve in zip(found.seeds, found.curves, strict=True):
        axes.plot(curve.rates, curve.losses, linewidth=1.4, label=f"seed {seed}")
    if found.lr is not None:
        axes.axvline(found.lr, color="black", linestyle="--", label=f"suggestion: {found.lr:.2g}")
    low, high = find_range([curve.losses for curve in found.curves])
    axes.set_xscale("log")
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low) or 1.0)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}.") from error
