"""`surestep eject RECIPE|RUN`: the plain PyTorch script of a run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.errors import ConfigError, RunError
from surestep.base.text import print_escaped
from surestep.cli.load_run import AllowRecipe, load_run_recipe, parse_allowed
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.output import write_new_file
from surestep.cli.parse import parse
from surestep.cli.plan import imagined_launch
from surestep.record.run import Run

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.recipes.load import RecipeCall

_OWN = ("--plain", "--with-checks", "--with_checks")
_WITH_VALUE = ("--out", "--ranks")


@dataclass(frozen=True)
class Options(CommandOptions):
    """Print the plain PyTorch script of a run. On a CPU, it trains the same weights, bit for bit.

    Attributes:
        plain: Leave out the comments.
        with_checks: Add assertions.
        ranks: Print a script for this number of processes, which torchrun starts. The default for a
            run is its own number.
        out: Write the script to this new file instead of printing it.
    """

    plain: bool = False
    with_checks: bool = False
    ranks: int | None = None
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE.py")] = None

    def check(self) -> None:
        """Check that the file does not exist."""
        if self.ranks is not None and self.ranks < 1:
            raise ConfigError(f"--ranks {self.ranks} is not allowed: it is 1 or more.")
        if self.out is not None and Path(self.out).exists():
            raise ConfigError(f"{self.out} already exists. Pass --out FILE, or delete it.")


@dataclass(frozen=True)
class RunOptions(Options):
    """Print the plain PyTorch script of a run. On a CPU, it trains the same weights, bit for bit.

    Attributes:
        allow: recipe: read the recipe although its file has changed; recipe-inside: read one that
            is in a run folder, a mirror or a study.
    """

    allow: AllowRecipe = None


def run(words: list[str]) -> int:
    """Print the script, or write it."""
    if words and (Path(words[0]) / "config.json").is_file():
        call, own = _read_run(words)
    else:
        call, own = read_command_line("eject", words, Options)
    from surestep.eject.script import print_script
    from surestep.engine.plan.system import read_system

    system, launched = read_system(), imagined_launch(own.ranks, own.ranks)
    if launched is not None and launched.size > 1:
        system = replace(system, launched=launched)
    origin = f"the run {words[0]}" if isinstance(own, RunOptions) else _name_command(words)
    text = print_script(
        call, origin, system=system, has_comments=not own.plain, has_checks=own.with_checks
    )
    if own.out is None:
        print_escaped(text.rstrip("\n"))
        return 0
    write_new_file(Path(own.out), text)
    start = "python" if own.ranks in (None, 1) else f"torchrun --nproc-per-node {own.ranks}"
    print_escaped(f"{own.out} is written. Next: {start} {shlex.quote(own.out)}")
    return 0


def _name_command(words: list[str]) -> str:
    """Return the command that trains the same weights."""
    rest = iter(words)
    kept = []
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif word not in _OWN and word.partition("=")[0] not in _WITH_VALUE:
            kept.append(word)
    return f"`surestep train {shlex.join(kept)}`"


def _read_run(words: list[str]) -> tuple[RecipeCall, Options]:
    folder, *rest = words
    own = parse(RunOptions, rest, f"surestep eject {shlex.quote(folder)}")
    own.check()
    run = Run(folder)
    _check_history(run, folder)
    ranks = (run.config.get("decided") or {}).get("parallel.ranks")
    if own.ranks is None and ranks is not None:
        own = replace(own, ranks=ranks)
    return load_run_recipe(run, parse_allowed(own.allow)), own


def _check_history(run: Run, shown: str) -> None:
    """Check that the options of a run are those of all its steps.

    Raises:
        RunError: they are not.
    """
    happened = {event["event"] for event in run.events()}
    if "branch" in happened:
        raise RunError(
            f"{shown} started from a checkpoint of another run, which a script does not have. "
            "Eject the recipe instead: surestep eject RECIPE [options]."
        )
    if "changes" in happened:
        raise RunError(
            f"{shown} was resumed with other options than it began with, so no script of one Plan "
            "trains its weights. Eject the recipe instead: surestep eject RECIPE [options]."
        )
