"""`surestep plan RECIPE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.plot_schedule import check_plot_path
from surestep.engine.distributed.launcher_env import LaunchInfo


@dataclass(frozen=True)
class Options(CommandOptions):
    """Show the options of a run with their reasons, without training.

    Attributes:
        json: Print the plan as JSON.
        all: Also show options that are off or do not apply.
        plot: Plot the learning-rate schedule to this file.
        ranks: Plan for this number of processes, and show the memory of each.
        local_ranks: Processes per machine, with --ranks; the default is 8, or all if fewer.
    """

    json: bool = False
    all: bool = False
    plot: Annotated[str | None, tyro.conf.arg(metavar="FILE.png")] = None
    ranks: int | None = None
    local_ranks: int | None = None

    def check(self) -> None:
        """Check the values, and that they fit each other."""
        if self.plot is not None:
            check_plot_path(Path(self.plot))
        imagined_launch(self.ranks, self.local_ranks)


def run(words: list[str]) -> int:
    """Show the options with their reasons, the learning rates, parameters and memory."""
    call, own = read_command_line("plan", words, Options)
    from surestep.cli.plan_report import print_plan  # torch is imported once all is checked

    launched = imagined_launch(own.ranks, own.local_ranks)
    return print_plan(call, launched, plot=own.plot, shows_all=own.all, as_json=own.json)


def imagined_launch(ranks: int | None, local: int | None) -> LaunchInfo | None:
    """Return the processes of --ranks; None if it is not set."""
    if ranks is None:
        if local is not None:
            raise ConfigError(f"--local-ranks {local} needs --ranks, such as --ranks {8 * local}.")
        return None
    default = "" if local is not None else ", the default of --local-ranks"
    local = min(8, ranks) if local is None else local
    if ranks < 1 or local < 1:
        raise ConfigError(
            f"--ranks {ranks} with --local-ranks {local} is not allowed: both are 1 or more."
        )
    if ranks % local:
        part = max(number for number in range(1, local) if ranks % number == 0)
        raise ConfigError(
            f"--ranks {ranks} is not a multiple of {local} ranks per machine{default}. Use "
            f"--local-ranks {part}, or --ranks {ranks - ranks % local + local}."
        )
    return LaunchInfo(size=ranks, local_size=local, launcher="--ranks", is_simulated=True)
