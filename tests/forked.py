"""Run Python in a fork of this process, which has imported torch: 0.2 s, not 3 s.

For scripts of one thread. What the start of a process decides needs a new one.
"""

import importlib
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from surestep.cli.main import main

_LIMIT_S = 120
Completed = subprocess.CompletedProcess[str]


def run_forked(folder: Path, *words: str, first: Callable[[], object] = bool) -> Completed:
    """Return the exit code of a command of surestep, and what it prints.

    `first` is called in the fork before the command.
    """

    def run() -> int:
        first()
        return main(words)

    return fork(folder, words, run)


def python_forked(folder: Path, *words: str) -> Completed:
    """Run `python FILE`, `python -c TEXT` or `python -m surestep` with arguments.

    surestep is imported again, since its options depend on the plug-ins that are found there.

    Args:
        folder: the working directory, where modules and plug-ins are found.
        words: what follows `python`.
    """
    return fork(folder, words, lambda: _run_python(folder, *words))


def forget_surestep() -> None:
    """Let this process import surestep again, with the plug-ins that are on its path by then."""
    for name in [name for name in sys.modules if name.split(".")[0] == "surestep"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _run_python(folder: Path, kind: str, *rest: str) -> None:
    forget_surestep()
    sys.path.insert(0, str(folder))
    if kind == "-m":
        sys.path.insert(0, "")  # as Python does
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__")
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


def fork(folder: Path, words: tuple[str, ...], run: Callable[[], int | None]) -> Completed:
    """Return the exit code of a function in a fork, and what it prints."""
    import torch._dynamo  # which an optimizer imports

    del torch
    streams = [folder / f".{name}-{os.getpid()}" for name in ("out", "err")]
    pid = os.fork()
    if not pid:
        _run(folder, streams, run)
    _, status = os.waitpid(pid, 0)
    texts = [path.read_text(encoding="utf-8") for path in streams]
    for path in streams:
        path.unlink()
    return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), *texts)


def _print_warning(*words: Any) -> None:
    sys.stderr.write(warnings.formatwarning(*words[:4]))


def _run(folder: Path, streams: list[Path], run: Callable[[], int | None]) -> NoReturn:
    code = 1
    try:
        signal.alarm(_LIMIT_S)
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        warnings.resetwarnings()
        warnings.showwarning = _print_warning  # instead of pytest's function, which records
        code = run() or 0
    except SystemExit as stop:  # of --help
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
