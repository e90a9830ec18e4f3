"""Write the page of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigError
from surestep.base.files import replace_file
from surestep.record.io import check_output, explain_write_errors
from surestep.record.run import Run
from surestep.record.runs import RunSummary, open_run_folder
from surestep.reports.curves import encode_curve
from surestep.reports.describe_run import describe_run
from surestep.reports.describe_runs import describe_runs
from surestep.reports.page import CHARTS, render_page
from surestep.reports.redact import redact

PAGE = "report.html"
ENDINGS = (".html", ".htm")  # so that no file of a run is replaced
# The last one runs the others.
ASSETS = (*CHARTS, "predictions.js", "regions.js", "run.js", "runs.js", "start.js")
LIVE_ASSETS = (*ASSETS[:-1], "live.js", ASSETS[-1])


def report(
    runs: Run | RunSummary | str | Path | Sequence[Run | RunSummary | str | Path],
    out: str | Path | None = None,
    *,
    redacted: bool = False,
) -> Path:
    """Write the page of a run, or one that compares runs: one file, which works offline.

    Args:
        runs: a run or its folder, or several. They may be running.
        out: the file to write or replace; by default report.html in the folder of the run, and
            for several runs in the current folder.
        redacted: leave out host, user, paths and environment.

    Returns:
        The page.

    Raises:
        ConfigError: there is no run.
        RunError: a file of a run is missing or cannot be read, or the page cannot be written.

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
    listed = [runs] if isinstance(runs, (Run, RunSummary, str, Path)) else list(runs)
    opened = [open_run_folder(one) for one in listed]
    if not opened:
        raise ConfigError("There is no run to report. Pass a run folder, or a list of them.")
    home = opened[0].path / PAGE if len(opened) == 1 else Path(PAGE)
    path = home if out is None else Path(out)
    write_page(path, describe({str(one.path): one for one in opened}, redacted=redacted))
    return path


def describe(runs: Mapping[str, Run], *, redacted: bool = False) -> dict[str, Any]:
    """Return the numbers of the page of a run, or of several.

    Args:
        runs: by folder or address.
        redacted: leave out host, user, paths and environment.
    """
    if len(runs) > 1:
        data = describe_runs(runs)
    else:
        ((name, run),) = runs.items()
        data = describe_run(run, name)
    return redact(data, runs) if redacted else data


def write_page(path: Path, data: Mapping[str, Any]) -> None:
    """Write the page that shows some data.

    Args:
        path: the file to write or replace.
        data: what `describe` returns.

    Raises:
        ConfigError: the file is not one with the ending .html, or its folder is missing.
        RunError: it cannot be written.
    """
    check_output(path, ENDINGS, overwrite=True)
    page = render_page(f"{data['run']} - surestep", encode_arrays(data), ASSETS)
    with (
        explain_write_errors(path, "file", " with --out (out= in Python)"),
        replace_file(path) as temporary,
    ):
        temporary.write_text(page, encoding="utf-8")


def encode_arrays(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data with its curves as a page reads them."""
    charts = [
        {**encode_curve(chart), "curves": [encode_curve(curve) for curve in chart["curves"]]}
        for chart in data["charts"]
    ]
    return dict(as_lists({**data, "charts": charts}))


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
