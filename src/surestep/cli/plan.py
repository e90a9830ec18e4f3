"""`surestep plan RECIPE`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from surestep.base.errors import ConfigError
from surestep.cli.options import read_command_line
from surestep.cli.plot_schedule import check_drawing
from surestep.engine.distributed.launcher_env import LaunchInfo

EXTRAS: dict[str, Any] = {
    "json": (Annotated[bool, tyro.conf.arg(help="Print the plan as JSON.")], False),
    "all": (
        Annotated[bool, tyro.conf.arg(help="Also show options that are off or do not apply.")],
        False,
    ),
    "plot": (
        Annotated[
            str | None,
            tyro.conf.arg(help="Plot the learning-rate schedule to this file.", metavar="FILE.png"),
        ],
        None,
    ),
    "ranks": (
        Annotated[
            int | None,
            tyro.conf.arg(help="Plan for this number of processes, and show the memory of each."),
        ],
        None,
    ),
    "local_ranks": (
        Annotated[
            int | None,
            tyro.conf.arg(
                help="Processes per machine, with --ranks; the default is 8, or all if fewer."
            ),
        ],
        None,
    ),
}


def run(words: list[str]) -> int:
    """Show every option with its reason, the learning rates, parameters and memory."""
    asked = read_command_line("plan", words, EXTRAS, check=_check_extras)
    from surestep.cli.show_plan import show_plan  # torch is imported once all is checked

    launched = _imagined(asked.extras["ranks"], asked.extras["local_ranks"])
    plot = asked.extras["plot"]
    return show_plan(asked, launched, None if plot is None else Path(plot))


def _check_extras(extras: Mapping[str, Any]) -> None:
    if extras["plot"] is not None:
        check_drawing(Path(extras["plot"]))
    _imagined(extras["ranks"], extras["local_ranks"])


def _imagined(ranks: int | None, local: int | None) -> LaunchInfo | None:
    """Return the processes that a plan is asked for; None for those that are there."""
    if ranks is None:
        if local is not None:
            raise ConfigError(
                f"--local-ranks {local} is of --ranks. Say both: --ranks {8 * local}."
            )
        return None
    taken = "" if local is not None else ", as where --local-ranks is not said"
    local = min(8, ranks) if local is None else local
    if ranks < 1 or local < 1:
        raise ConfigError(
            f"--ranks {ranks} with --local-ranks {local} is not allowed: both are 1 or more."
        )
    if ranks % local:
        part = max(each for each in range(1, local) if ranks % each == 0)
        raise ConfigError(
            f"--ranks {ranks} does not fill machines of {local} ranks each{taken}. Say "
            f"--local-ranks {part}, or --ranks {ranks - ranks % local + local}."
        )
    return LaunchInfo(size=ranks, local_size=local, launcher="--ranks", is_simulated=True)
