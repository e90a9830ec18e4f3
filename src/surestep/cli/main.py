"""`surestep COMMAND ...`. Commands are imported when they are called: --help needs no torch."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, cast

import surestep
from surestep.base.errors import ConfigError, suggest_names
from surestep.base.exit_codes import FAILED, WRONG_USAGE
from surestep.base.text import print_escaped
from surestep.cli.guard import drop_output, run_guarded
from surestep.cli.launch import read_launch, strip_launcher_args
from surestep.cli.stop import TRAINING, handle_early_signals
from surestep.engine.distributed.launcher_env import read_launched

COMMANDS = {
    "train": "train RECIPE: train the model of a recipe",
    "resume": "resume RUN: resume a run from its newest checkpoint",
    "plan": "plan RECIPE: show the options of a run with their reasons, without training",
    "eject": "eject RECIPE|RUN: print the plain PyTorch script that trains the same weights",
    "lr-find": "lr-find RECIPE: measure which learning rate to train a recipe with",
    "search": "search RECIPE: search the options of a recipe; search show STUDY shows a study",
    "tune": "tune RECIPE: measure what makes a recipe faster, and prove what keeps its numbers",
    "prove": "prove RECIPE: train a recipe for a few steps, many times over, and compare the runs",
    "evaluate": "evaluate RUN: evaluate the best model of a run",
    "predict": "predict RUN: write the best model's prediction for every sample",
    "check": "check [PATH...]: find mistakes in training scripts, without running them",
    "watch": "watch SCRIPT [ARGS]: run a script, and report what is silently wrong in its training",
    "explain": "explain [RULE]: explain the mistakes that check and watch find",
    "diagnose": "diagnose [RUN]: name the curve of a run, and what usually causes it",
    "report": "report [RUN...]: write a page that shows a run, or compares runs",
    "plot": "plot [RUN...]: draw the losses, metrics and learning rate of runs as text",
    "runs": "runs [FOLDER]: list the runs in a folder with state, step, best metric and size",
    "ckpt": "ckpt list|verify|export|diff: inspect the checkpoints of a run",
    "replay": "replay INCIDENT: run a failed step again",
    "mirror": "mirror push|fetch|release: copy a run to its mirror or from it",
    "track": "track replay RUN|STUDY --to TRACKER: send what was recorded to a tracker",
    "new": "new project NAME: write a folder that trains at once; new slurm RECIPE: an sbatch file",
    "schedules": "schedules [SCHEDULE]: explain the learning-rate schedules",
    "losses": "losses [LOSS]: explain the losses",
    "completion": "completion SHELL: print a script that completes the command line of a shell",
    "docs": "docs [TOPIC]: print a page of the documentation, or list the pages",
}

_BY_ONE = ("eject", "evaluate", "predict", "prove", "replay", "search", "tune")

USAGE = """usage: surestep COMMAND ...

{commands}

Built-in recipes: digits, chars, spiral, tabular, imbalanced, finetune, distill, segment, images,
gan, hf; RECIPE can also be your own Python file.
`surestep train digits` trains one; `surestep train digits --help` explains its options.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    `surestep.base.exit_codes` lists them.
    """
    args = strip_launcher_args(list(sys.argv[1:] if words is None else words)) or ["--help"]
    # `watch` runs a script that prints and warns as it would under Python.
    with nullcontext() if args[0] == "watch" else _own_output(args[0]):
        failed = WRONG_USAGE if args[:2] == ["ckpt", "diff"] else FAILED
        return run_guarded(partial(_run_stoppable, args), args[0], failed=failed).code


@contextmanager
def _own_output(command: str) -> Iterator[None]:
    """Print on rank 0 only, and warnings without the line of this package that raised them."""
    with warnings.catch_warnings(), ExitStack() as stack:
        if command in TRAINING:
            stack.enter_context(redirect_stdout(cast(TextIO, _OptionalOutput(sys.stdout))))
            stack.enter_context(redirect_stderr(cast(TextIO, _OptionalOutput(sys.stderr))))
        if read_launch().rank > 0:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(redirect_stdout(nowhere))
        warnings.showwarning = _show_warning
        yield


class _OptionalOutput:
    """A stream that drops what is printed after its reader, such as `head`, has left.

    A run does not end with the reader of its output.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            drop_output(self._stream)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print_escaped(f"Warning: {message}", file=sys.stderr)


def _run_stoppable(words: list[str]) -> int:
    with handle_early_signals(words):
        code = _run(*words)
        sys.stdout.flush()
    return code


def _run(command: str, *rest: str) -> int:
    if command in ("-h", "--help"):
        print(USAGE.format(commands=list_commands(COMMANDS)))
        return 0
    if command == "--version":
        print(f"surestep {surestep.__version__}")
        return 0
    if command not in COMMANDS:
        return reject_command("surestep", command, COMMANDS)
    if command in _BY_ONE and read_launched().size > 1:
        raise ConfigError(
            f"surestep {command} runs in one process, and {read_launched().launcher} started "
            f"{read_launched().size}. Run it without a launcher."
        )
    run: Callable[[list[str]], int] = import_module(module_of(command)).run
    return run(list(rest))


def module_of(command: str) -> str:
    """Return the module that runs a command."""
    return f"surestep.cli.{command.replace('-', '_')}"


def list_commands(commands: Mapping[str, str]) -> str:
    """Return a row for each command, whose text is "usage: what it does"."""
    rows = [text.split(": ", 1) for text in commands.values()]
    width = max(len(usage) for usage, _ in rows)
    return "\n".join(f"  {usage:<{width}}  {text}" for usage, text in rows)


def run_subcommand(
    group: str,
    commands: Mapping[str, str],
    functions: Mapping[str, Callable[[list[str]], int]],
    words: list[str],
    note: str = "",
) -> int:
    """Run `surestep GROUP COMMAND ...`, or print its help page, which ends with the note."""
    name, *rest = words or ["--help"]
    if name in ("-h", "--help"):
        end = f"\n\n{note}" if note else ""
        print(f"usage: surestep {group} COMMAND ...\n\n{list_commands(commands)}{end}")
        return 0
    if name not in commands:
        return reject_command(f"surestep {group}", name, commands)
    return functions[name](rest)


def reject_command(prog: str, command: str, commands: Mapping[str, str]) -> int:
    """Print that there is no such command; return the exit code."""
    print_escaped(
        f"{prog}: no command {command!r}. {suggest_names(command, commands)}", file=sys.stderr
    )
    return WRONG_USAGE
