"""`surestep COMMAND ...`. Commands are imported when they are called: --help needs no torch."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from importlib import import_module
from pathlib import Path

import surestep
from surestep.base.errors import ConfigError, Preempted, RecipeError, SurestepError, suggest_names
from surestep.base.text import print_escaped
from surestep.cli.launch import strip_launcher_args
from surestep.engine.distributed.error_reporting import report_error_once
from surestep.engine.distributed.launcher_env import LaunchInfo, read_launched

COMMANDS = {
    "train": "train RECIPE: train the model of a recipe",
    "resume": "resume RUN: resume a run from its newest checkpoint",
    "plan": "plan RECIPE: show every option of a run with its reason, without training",
    "evaluate": "evaluate RUN: evaluate the best model of a run",
    "new": "new --slurm RECIPE: write an sbatch file that trains a recipe under Slurm",
    "predict": "predict RUN: write the best model's prediction for every sample",
    "ckpt": "ckpt list|verify|export|diff: inspect the checkpoints of a run",
    "replay": "replay INCIDENT: run a failed step again",
    "schedules": "schedules [SCHEDULE]: explain the learning-rate schedules",
    "losses": "losses [LOSS]: explain the losses",
}

_BY_ONE = ("evaluate", "predict", "replay")

USAGE = """usage: surestep COMMAND ...

{commands}

Built-in recipes: digits, chars, spiral, tabular, imbalanced, finetune, distill, segment, gan,
hf; RECIPE can also be your own Python file.
`surestep train digits` trains one; `surestep train digits --help` explains its options.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    0: success; 1: failure; 2: wrong usage; 75: stopped by SIGTERM, SIGUSR1 or SIGHUP, and saved;
    130: Ctrl-C. For `ckpt diff`, as for diff and cmp, 1 is a difference and 2 any failure.
    """
    with warnings.catch_warnings(), ExitStack() as stack:
        if read_launched().rank > 0:  # of several processes, one prints
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(redirect_stdout(nowhere))
        warnings.showwarning = _show_warning
        said = strip_launcher_args(list(sys.argv[1:] if words is None else words))
        return _guarded(said or ["--help"])


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print_escaped(f"Warning: {message}", file=sys.stderr)


def _guarded(words: list[str]) -> int:
    """Run a command; turn what it raises into a message and an exit code."""
    try:
        code = _run(*words)
        sys.stdout.flush()
        return code
    except Preempted:  # where it stopped was said at once
        return os.EX_TEMPFAIL
    except SurestepError as error:
        notes = getattr(error, "__notes__", [])
        _tell("\n".join([f"{type(error).__name__}: {error}", *notes]))
        wrong_use = isinstance(error, (ConfigError, RecipeError))
        return 2 if wrong_use or words[:2] == ["ckpt", "diff"] else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # Python itself would print the words of it as they are
        _tell(traceback.format_exc().rstrip())
        return 1


def _tell(text: str) -> None:
    """Print an error, of several processes one for all that have it."""
    report_error_once(text, _launched(), lambda said: print_escaped(said, file=sys.stderr))


def _launched() -> LaunchInfo:
    """Return what the launcher said; what it said wrong is an error of its own."""
    try:
        return read_launched()
    except ConfigError:
        return LaunchInfo()


def _run(command: str, *rest: str) -> int:
    if command in ("-h", "--help"):
        width = max(len(text.split(":")[0]) for text in COMMANDS.values())
        rows = [text.split(": ") for text in COMMANDS.values()]
        print(USAGE.format(commands="\n".join(f"  {call:<{width}}  {text}" for call, text in rows)))
        return 0
    if command == "--version":
        print(f"surestep {surestep.__version__}")
        return 0
    if command not in COMMANDS:
        print_escaped(
            f"surestep: no command {command!r}. {suggest_names(command, COMMANDS)}", file=sys.stderr
        )
        return 2
    if command in _BY_ONE and read_launched().size > 1:
        raise ConfigError(
            f"surestep {command} runs in one process, and {read_launched().launcher} has started "
            f"{read_launched().size}. Call it without a launcher."
        )
    run: Callable[[list[str]], int] = import_module(f"surestep.cli.{command}").run
    return run(list(rest))
