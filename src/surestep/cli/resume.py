"""`surestep resume RUN`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.errors import ConfigError
from surestep.base.locations import COMMAND_LINE
from surestep.base.paths import is_address
from surestep.base.text import print_escaped
from surestep.cli.launch import launch, original_argv
from surestep.cli.load_run import INSIDE, load_run_recipe
from surestep.cli.mirrored import open_mirrored
from surestep.cli.notify import NotifiedCommand, choose_command
from surestep.cli.parse import parse_known, split_names
from surestep.cli.stop import handle_late_signals
from surestep.cli.train import make_quiet, report, spell_out_quiet, train
from surestep.engine.distributed.launcher_env import NPROC, read_launched
from surestep.mirror.link import find_address
from surestep.recipes.find import recipe_argument
from surestep.record.run import Run

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.recipes.load import RecipeCall

_NO_MIRROR = "none"


@dataclass(frozen=True)
class Options:
    """Resume a run from its newest valid checkpoint, with the recipe that started it.

    Attributes:
        run: Run folder, or the address of a mirror, such as s3://bucket/run.
        mirror: Address of the mirror of a run folder that was started on another machine; none
            resumes it without a mirror.
        allow: What may differ from the run: recipe (its file), data, task.NAME, ... Pass
            recipe-inside to run a recipe that is in a run folder, a mirror or a study.
        nproc: Number of processes to start on this machine.
        json: Print the results as JSON.
        quiet: Show no progress; the short form is -q.
        notify: Shell command to run at the end; none: ignore that of your settings.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    mirror: Annotated[str | None, tyro.conf.arg(name="checkpoint.mirror", metavar="ADDRESS")] = None
    allow: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    nproc: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    json: bool = False
    quiet: bool = False
    notify: Annotated[str | None, tyro.conf.arg(metavar="COMMAND")] = None


def run(words: list[str]) -> int:
    """Resume a run; print what `surestep train` prints."""
    parsed, unknown = parse_known(Options, spell_out_quiet(words), "surestep resume")
    parsed = replace(parsed, run=find_address(parsed.run) or parsed.run)
    if unknown:
        with _open_run(parsed.run) as folder:
            raise _reject_options(folder, parsed.run, shlex.join(unknown))
    command = choose_command(parsed.notify)
    if parsed.nproc is not None:
        return launch(parsed.nproc, ["resume", *words])
    notified = NotifiedCommand("resume", command, parsed.run)
    return notified.run(partial(_run, parsed, words, notified))


def _run(parsed: Options, words: list[str], notified: NotifiedCommand) -> int:
    allow = split_names(parsed.allow)
    # With --json, stdout has only the results; callbacks of a recipe may print.
    with redirect_stdout(sys.stderr) if parsed.json else nullcontext():
        with _open_run(parsed.run) as folder:
            call = load_run_recipe(folder, allow, shown=parsed.run)
            _print_fewer_processes(folder, parsed.run)
        if parsed.mirror is not None:
            call = _set_mirror(call, None if parsed.mirror == _NO_MIRROR else parsed.mirror)
        elif is_address(parsed.run):  # the run may have been copied there from another place
            call = _set_mirror(call, None)
        resume_command = shlex.join(["surestep", "resume", *original_argv(words)])
        call = make_quiet(call) if parsed.quiet else call
        names = tuple(name for name in allow if name != INSIDE)
        trained = train(call, resume_command, on_open=notified.follow, run=parsed.run, allow=names)
    with handle_late_signals():
        return report(*trained, fail_on=call.config.doctor.fail_on, as_json=parsed.json)


def _set_mirror(call: RecipeCall, address: str | None) -> RecipeCall:
    """Replace the mirror that a run folder names by one that was typed, or by none."""
    typed = {"checkpoint.mirror": COMMAND_LINE}
    config = call.config.replace_options({"checkpoint.mirror": address}, typed)
    return replace(call, config=config, set_options={**call.set_options, **typed})


@contextmanager
def _open_run(name: str) -> Iterator[Run]:
    """Yield a run folder to read; that of a mirror is an outline in a temporary folder."""
    if is_address(name):
        with open_mirrored(name) as mirrored:
            yield mirrored.run
    else:
        yield Run(Path(name))


def _print_fewer_processes(folder: Run, name: str) -> None:
    """Print how to start as many processes as the run had, if this is the only one."""
    ranks = (folder.config.get("decided") or {}).get("parallel.ranks") or 1
    if ranks > 1 and read_launched().size == 1 and folder.status["status"] != "finished":
        print_escaped(
            f"{name} was trained by {ranks} processes and resumes in one. To resume with "
            f"{ranks}, add {NPROC} {ranks}.",
            file=sys.stderr,
        )


def _reject_options(folder: Run, name: str, options: str) -> ConfigError:
    """Return the error for options that `surestep resume` does not take."""
    instead = f"surestep.Trainer(task, config, run={name!r}), in Python"
    if recipe := folder.config["recipe"]:
        words = ["surestep", "train", recipe_argument(recipe), "--run", name]
        instead = f"{shlex.join(words)} {options}"
    return ConfigError(
        f"surestep resume does not take {options}: it resumes a run with its own options. To "
        f"change them, type those that started the run again, and the new ones: {instead}"
    )
