"""Draw the curves of runs, in a notebook or a script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from surestep.base.errors import ConfigError
from surestep.record.charts import check_columns
from surestep.record.run import Run
from surestep.record.runs import RunSummary, newest_run, open_run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RUNS = Path("runs")


def plot(
    *runs: Run | RunSummary | str | Path, of: str | Sequence[str] = (), log: bool = False
) -> Figure:
    """Draw the losses, the metrics and the learning rate of runs, as `surestep plot` does.

    A notebook shows the figure; `figure.savefig("curves.png")` writes it to a file. It needs
    matplotlib.

    Args:
        runs: runs or their folders, drawn over one another; by default the newest run in "runs".
        of: columns of the history, each with a chart, such as "grad_norm"; by default the losses,
            each metric and the learning rates.
        log: draw the values on a logarithmic axis, which has no values up to 0.

    Returns:
        The figure. A range of steps has its smallest and its largest value, so that no spike is
        lost.

    Raises:
        ConfigError: matplotlib is missing, a run is of another type, or no run has such a column.
        RunError: a run cannot be read, or none has steps or evaluations.

    Example:
        >>> import torch
        >>> import surestep
        >>> x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        >>> task = surestep.Task(torch.nn.Linear(4, 3), loss="multiclass", train=(x, y), val=(x, y))
        >>> config = surestep.Config(epochs=1, batch_size=16, logging={"progress": "quiet"})
        >>> run = surestep.Trainer(task, config, run="runs/drawn").fit()
        >>> figure = surestep.plot(run, of="train/loss")
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['train/loss']
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("surestep.plot() needs matplotlib. Install it: pip install matplotlib.")
    from surestep.record.figure import draw_figure

    opened = [_open(run) for run in runs] or [Run(newest_run(_RUNS))]
    names = [run.name for run in opened]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in opened]
    histories = {name: run.history() for name, run in zip(names, opened, strict=True)}
    columns = (of,) if isinstance(of, str) else tuple(of)
    check_columns(histories, columns)
    return draw_figure(histories, columns, log=log)


def _open(run: object) -> Run:
    if isinstance(run, (Run, RunSummary, str, Path)):
        return open_run_folder(run)
    raise ConfigError(
        f"surestep.plot() takes runs and their folders, and not a {type(run).__name__}. Pass them "
        'one by one: surestep.plot("runs/a", "runs/b").'
    )
