"""`surestep tune RECIPE`."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from surestep.base.errors import ConfigError
from surestep.base.exit_codes import DONE, INTERRUPTED, STOPPED
from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.parse import split_names
from surestep.engine.distributed.launcher_env import NPROC
from surestep.engine.distributed.stop_signals import CTRL_C

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.tuning.speed.result import TuneResult

_CODES = {"": DONE, CTRL_C: INTERRUPTED}


@dataclass(frozen=True)
class Options(CommandOptions):
    """Measure what makes a recipe faster, and prove what keeps its numbers.

    Attributes:
        minutes: Time that all of it may take.
        out: Folder of the result; the default is tunes/RECIPE-TIME.
        allow: numbers: also take what changes the numbers, if the loss is not higher.
        knobs: Which knobs to try, separated by commas; the default is all.
        nproc: Number of processes that train.
        json: Print the result as JSON.
    """

    minutes: Annotated[float, tyro.conf.arg(metavar="N")] = 10.0
    out: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    allow: Literal["numbers"] | None = None
    knobs: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    nproc: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    json: bool = False
    instead: ClassVar[Mapping[str, str]] = {
        "run": "A tuning makes no run folder: use --out FOLDER."
    }

    def check(self) -> None:
        """Check the numbers."""
        if not 0 < self.minutes < math.inf:
            raise ConfigError(
                f"--minutes {self.minutes:g} is not a time to measure in. Pass 2 or more; the "
                "default is 10."
            )
        if self.nproc is not None and self.nproc < 1:
            raise ConfigError(f"{NPROC} {self.nproc} is not a number of processes. Use 1 or more.")


def run(words: list[str]) -> int:
    """Tune; print the tables and what to type next."""
    call, own = read_command_line("tune", words, Options)
    from surestep.tuning.speed.tune import TuneOptions, run_tune

    options = TuneOptions(
        own.minutes,
        None if own.out is None else require_local_path(own.out),
        split_names(own.knobs),
        own.allow is not None,
        own.nproc or 1,
    )
    with redirect_stdout(sys.stderr) if own.json else nullcontext():
        result, folder = run_tune(call, options)
    if own.json:
        from surestep.record.io import dumps

        print_json(dumps({**result.as_json(), "folder": str(folder)}, indent=1))
    else:
        _print(result, folder, words[0])
    return _CODES.get(result.stopped, STOPPED)


def _print(result: TuneResult, folder: Path, recipe: str) -> None:
    from surestep.tuning.speed.table import COLUMNS, list_unused, summarize, tabulate_rungs
    from surestep.tuning.speed.write import CONFIG, PAGE, TITLES

    if result.stopped:
        print_escaped(f"Stopped by {result.stopped}. This is what is known so far.")
    for keeps_numbers, title in TITLES.items():
        show.print_table(title, COLUMNS, tabulate_rungs(result, keeps_numbers=keeps_numbers))
        if unused := list_unused(result, keeps_numbers=keeps_numbers):
            print_escaped(unused)
    for sentence in summarize(result):
        print_escaped(sentence)
    print_escaped(f"Report: {folder / PAGE}")
    if result.list_options("kept"):
        config = shlex.quote(str(folder / CONFIG))
        print_escaped(f"Next: surestep train {shlex.quote(recipe)} --config {config}")
