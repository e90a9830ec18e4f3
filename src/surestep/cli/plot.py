"""`surestep plot [RUN ...]`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError
from surestep.base.paths import is_address
from surestep.cli.follow import follow as follow_changes
from surestep.cli.open_run import open_run
from surestep.cli.parse import command
from surestep.record.progress import state_of
from surestep.record.run import Run
from surestep.record.runs import newest_run

_RUNS = Path("runs")
_PIPE_WIDTH = 100  # characters, where there is no terminal
_LEAST = (40, 6)  # of width and height


@command("plot")
def run(
    folders: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN")] = (),
    /,
    *,
    of: tuple[str, ...] = (),
    log: bool = False,
    follow: bool = False,
    width: int | None = None,
    height: int = 16,
) -> int:
    """Draw the losses, the metrics and the learning rate of runs as text.

    Several runs are drawn over one another. A range of steps that is one column wide has its
    smallest and its largest value, so that no spike is lost.

    Args:
        folders: Run folders, or addresses of mirrors; by default the newest run in runs.
        of: Draw these columns of the history instead, such as `--of grad_norm val/loss`.
        log: Draw the values on a logarithmic axis.
        follow: Draw again when something is recorded, until all runs have ended, or Ctrl-C.
        width: Characters in a line; by default those of the terminal.
        height: Lines of a chart.
    """
    from surestep.cli.text_charts import draw_charts  # imports numpy
    from surestep.record.charts import check_columns

    names = list(dict.fromkeys(folders)) or [str(newest_run(_RUNS))]
    is_terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if is_terminal else _PIPE_WIDTH
    columns = columns if width is None else width
    if columns < _LEAST[0] or height < _LEAST[1]:
        raise ConfigError(
            f"A chart of {columns} x {height} is too small. Pass --width {_LEAST[0]} or more and "
            f"--height {_LEAST[1]} or more."
        )
    colors = is_terminal and not os.environ.get("NO_COLOR")
    with ExitStack() as stack:
        runs = {name: stack.enter_context(open_run(name)) for name in names}

        def draw() -> str:
            histories = {name: one.history() for name, one in runs.items()}
            check_columns(histories, of)
            return "\n".join(draw_charts(histories, of, (columns, height), log=log, colors=colors))

        if not follow:
            print(draw(), flush=True)
            return 0
        if addresses := [name for name in names if is_address(name)]:
            raise ConfigError(
                f"--follow reads run folders on this machine, and {addresses[0]} is an address. "
                "Leave it out."
            )
        follow_changes(draw, partial(_stamp, runs), partial(_are_over, runs))
    return 0


def _stamp(runs: Mapping[str, Run]) -> tuple[float, ...]:
    return tuple((one.path / "events.jsonl").stat().st_mtime for one in runs.values())


def _are_over(runs: Mapping[str, Run]) -> bool:
    return all(state_of(one.path, one.status) != "running" for one in runs.values())
