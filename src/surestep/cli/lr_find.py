"""`surestep lr-find RECIPE`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, fields
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.launch import launch
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.plot_schedule import check_plot_path
from surestep.engine.distributed.launcher_env import read_launched

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.trainer.find_lr import LrRangeTest

_SIZE = (100, 16)  # characters and lines of the chart, where there is no terminal


@dataclass(frozen=True)
class Options(CommandOptions):
    """Measure which learning rate to train a recipe with, by a range test and short trainings.

    Attributes:
        optimizer: Which rate to measure, if there are several optimizers.
        seeds: Number of seeds: range tests, and trainings at each rate.
        steps: Number of steps of a range test, and of a short training.
        lowest: Learning rate of the first step.
        highest: Learning rate of the last step.
        plot: Plot the curves to this file.
        nproc: Number of training processes to start on this machine.
        json: Print the curves and the rate as JSON.
    """

    optimizer: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    seeds: int = 3
    steps: int = 200
    lowest: float = 1e-7
    highest: float = 10.0
    plot: Annotated[str | None, tyro.conf.arg(metavar="FILE.png")] = None
    nproc: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    json: bool = False

    def check(self) -> None:
        """Check the values, and that they fit each other."""
        if self.plot is not None:
            check_plot_path(Path(self.plot))


def run(words: list[str]) -> int:
    """Measure; draw the curves, and print the rate and what to type next."""
    call, own = read_command_line("lr-find", words, Options)
    if own.nproc is not None:
        return launch(own.nproc, ["lr-find", *words])
    from surestep.trainer.find_lr import find_lr

    is_first = read_launched().rank == 0
    found = find_lr(
        call.task(),
        call.config,
        optimizer=own.optimizer,
        seeds=own.seeds,
        steps=own.steps,
        lowest=own.lowest,
        highest=own.highest,
        notify=partial(print_escaped, file=sys.stderr) if is_first else None,
    )
    if is_first:
        _show(found, own, words)
    return 0 if found.lr is not None else 1


def _show(found: LrRangeTest, own: Options, words: list[str]) -> None:
    if own.plot is not None:
        from surestep.cli.lr_chart import plot_curves

        plot_curves(found, Path(own.plot))
        print_escaped(f"Drawn: {own.plot}", file=sys.stderr)
    if own.json:
        from surestep.record.io import dumps

        print_json(dumps(found.as_json()))
    else:
        _print(found, words)


def _print(found: LrRangeTest, words: list[str]) -> None:
    from surestep.cli.lr_chart import draw_curves

    is_terminal = sys.stdout.isatty()
    size = (shutil.get_terminal_size().columns, _SIZE[1]) if is_terminal else _SIZE
    colors = is_terminal and not os.environ.get("NO_COLOR")
    print("\n".join(draw_curves(found, size, colors=colors)))
    rows = [
        (seed, len(curve.losses), f"{curve.rates[-1]:.3g}", "none" if lr is None else f"{lr:.3g}")
        for seed, curve, lr in zip(found.seeds, found.curves, found.by_seed, strict=True)
    ]
    title = f"Learning rate of {found.optimizer}"
    show.print_table(title, ("seed", "steps", "up to", "suggests"), rows)
    if found.trainings:
        head = ("rate", *(f"loss of seed {seed}" for seed in found.seeds))
        show.print_table("Short trainings", head, _list_trainings(found))
    if found.starts_alike and len(found.seeds) > 1:
        print_escaped(
            "The model is built already, so all seeds start from the same weights: they differ in "
            "the order of the data and in dropout."
        )
    if found.lr is None:
        print_escaped(f"{found.why[0].upper()}{found.why[1:]}.", file=sys.stderr)
        return
    print_escaped(f"Suggestion: {found.lr:.2g}, {found.why}.")
    if found.spread is not None and len(found.seeds) > 1:
        low, high = found.spread
        print_escaped(f"Each seed alone suggests {low:.2g} to {high:.2g}.")
    print_escaped(_next_step(found, words))


def _list_trainings(found: LrRangeTest) -> list[tuple[str, ...]]:
    """Return the rate and the losses of each short training, by rising rate."""
    return [
        (f"{one.lr:.2g}", *("diverged" if loss == inf else f"{loss:.4g}" for loss in one.losses))
        for one in sorted(found.trainings, key=lambda one: one.lr)
    ]


def _next_step(found: LrRangeTest, words: list[str]) -> str:
    """Return what to type next."""
    lr = f"{found.lr:.2g}"
    if not found.option:
        name, _, part = found.optimizer.partition(".")
        option = "adamw_lr" if part else "lr"
        return f"Next: set it in the Task: optimizers={{{name!r}: surestep.Optim({option}={lr})}}"
    flag = f"--{found.option.replace('_', '-')}"
    own = {f"--{field.name}" for field in fields(Options)} - {"--config", "--nproc"}
    kept, is_kept = list[str](), True
    for word in words:
        if word.startswith("--"):
            is_kept = word.partition("=")[0] not in (*own, flag)
        kept += [word] if is_kept else []
    return f"Next: {shlex.join(['surestep', 'train', *kept, flag, lr])}"
