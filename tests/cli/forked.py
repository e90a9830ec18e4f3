"""Run a command of surestep in a fork of this process, which has imported torch: 0.2 s, not 3 s."""

import os
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

from surestep.cli.main import main

_LIMIT_S = 120


def run_forked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Return the exit code of a command, and what it prints; for scripts of one thread."""
    import torch._dynamo  # which an optimizer imports

    del torch
    streams = [folder / f".{name}-{os.getpid()}" for name in ("out", "err")]
    pid = os.fork()
    if not pid:
        _run(folder, words, streams)
    _, status = os.waitpid(pid, 0)
    texts = [path.read_text(encoding="utf-8") for path in streams]
    for path in streams:
        path.unlink()
    return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), *texts)


def _run(folder: Path, words: tuple[str, ...], streams: list[Path]) -> NoReturn:
    code = 1
    try:
        signal.alarm(_LIMIT_S)
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        warnings.resetwarnings()
        code = main(words)
    except SystemExit as stop:  # of --help
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
