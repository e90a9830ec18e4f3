"""Write the page of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.files import replace_file
from surestep.record.io import explain_write_errors
from surestep.record.run import Run
from surestep.reports.curves import encode_curve
from surestep.reports.describe_run import describe_run
from surestep.reports.page import CHARTS, render_page

PAGE = "report.html"


def report(run: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a run: one file, which works offline.

    Args:
        run: a run, or its folder. It may be running.
        out: the file to write or replace; by default report.html in the run folder.

    Returns:
        The page.

    Raises:
        RunError: a file of the run is missing or cannot be read, or the page cannot be written.

    Example:
        >>> import torch
        >>> import surestep
        >>> x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        >>> task = surestep.Task(torch.nn.Linear(4, 3), loss="multiclass", train=(x, y), val=(x, y))
        >>> config = surestep.Config(epochs=1, batch_size=16, logging={"progress": "quiet"})
        >>> _ = surestep.Trainer(task, config, run="runs/shown").fit()
        >>> print(surestep.report("runs/shown"))
        runs/shown/report.html
    """
    read = run if isinstance(run, Run) else Run(Path(run))
    path = read.path / PAGE if out is None else Path(out)
    write_page(path, describe_run(read, str(read.path)))
    return path


def write_page(path: Path, data: Mapping[str, Any]) -> None:
    """Write the page that shows some data.

    Args:
        path: the file to write or replace.
        data: what `describe_run` returns.

    Raises:
        RunError: it cannot be written.
    """
    page = render_page(f"{data['run']} - surestep", encode_arrays(data), (*CHARTS, "run.js"))
    with (
        explain_write_errors(path, "file", " with --out (out= in Python)"),
        replace_file(path) as temporary,
    ):
        temporary.write_text(page, encoding="utf-8")


def encode_arrays(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data with its curves as a page reads them."""
    charts = [
        {**chart, "curves": [encode_curve(curve) for curve in chart["curves"]]}
        for chart in data["charts"]
    ]
    return {**data, "charts": charts, "axis": as_lists(data["axis"])}


def as_lists(value: Any) -> Any:
    """Return what JSON can hold: arrays become lists, and numbers that are not finite None."""
    if isinstance(value, np.ndarray):
        return as_lists(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): as_lists(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_lists(inner) for inner in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
