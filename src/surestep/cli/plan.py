"""`surestep plan RECIPE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.plot_schedule import check_plot_path
from surestep.config.byte_size import parse_bytes
from surestep.config.duration import parse_number
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
        memory: Find the largest micro-batch that fits into this memory of a device, which need not
            be here; such as 24GB.
    """

    json: bool = False
    all: bool = False
    plot: Annotated[str | None, tyro.conf.arg(metavar="FILE.png")] = None
    ranks: int | None = None
    local_ranks: int | None = None
    memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None

    def check(self) -> None:
        """Check the values, and that they fit each other."""
        if self.plot is not None:
            check_plot_path(Path(self.plot))
        imagined_launch(self.ranks, self.local_ranks)
        parse_memory(self.memory)


def run(words: list[str]) -> int:
    """Show the options with their reasons, the learning rates, parameters and memory."""
    call, own = read_command_line("plan", words, Options)
    from surestep.cli.plan_report import print_plan  # torch is imported once all is checked

    launched = imagined_launch(own.ranks, own.local_ranks)
    limit = parse_memory(own.memory)
    return print_plan(call, launched, limit, plot=own.plot, shows_all=own.all, as_json=own.json)


def parse_memory(text: str | None) -> int | None:
    """Return the bytes of --memory; None if it is not set.

    Raises:
        ConfigError: it is not an amount with a unit, or not above 0.
    """
    if text is None:
        return None
    amount, number = parse_bytes(text.removeprefix("-")), parse_number(text.removeprefix("-"))
    if amount is None and number is None:
        raise ConfigError(
            f"--memory {text!r} is not an amount of memory. Write a number with a unit, such as "
            "24GB or 512MiB."
        )
    if text.startswith("-") or not (amount or number) or (amount is not None and amount < 1):
        raise ConfigError(
            f"--memory {text} leaves no memory. Write an amount above 0, such as 24GB."
        )
    if amount is None:
        raise ConfigError(f"--memory {text} has no unit. Write --memory {text}GB.")
    return int(amount)


def imagined_launch(ranks: int | None, local: int | None) -> LaunchInfo | None:
    """Return the processes of --ranks; None if it is not set."""
    if ranks is None:
        if local is not None:
            raise ConfigError(f"--local-ranks {local} needs --ranks, such as --ranks {8 * local}.")
        return None
    default = "" if local is not None else ", the default of --local-ranks"
    local = max(1, min(8, ranks)) if local is None else local
    for name, number in (("--ranks", ranks), ("--local-ranks", local)):
        if number < 1:
            raise ConfigError(f"{name} {number} is not allowed: it is 1 or more.")
    if ranks % local:
        part = max(number for number in range(1, local) if ranks % number == 0)
        raise ConfigError(
            f"--ranks {ranks} is not a multiple of {local} ranks per machine{default}. Use "
            f"--local-ranks {part}, or --ranks {ranks - ranks % local + local}."
        )
    return LaunchInfo(size=ranks, local_size=local, launcher="--ranks", is_simulated=True)
