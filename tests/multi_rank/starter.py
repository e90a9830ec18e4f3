"""Start ranks as forks of one process that has imported all libraries: importing takes 8 s.

    python -m tests.multi_rank.starter

reads a line of JSON for each start: what to call, its words, and a file for its output. It forks
a process that calls it, and answers with the exit code. Tests call `start` instead.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tests.multi_rank.torchrun import ROOT
from tests.warm import warm_python

LIMIT_S = 1200  # ends a start that hangs, even on a busy machine
OUTPUT = "output.txt"


def start(module: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call `main(folder, *words)` of a module of this package in a fork of the warm process."""
    server, output = _server(), folder / OUTPUT
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{json.dumps([module, str(folder), *words])}\n")
    server.stdin.flush()
    code = int(server.stdout.readline())
    text = output.read_text(encoding="utf-8", errors="replace")
    return subprocess.CompletedProcess([module, *words], code, "", text)


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process that starts the ranks; it ends with this one."""
    server = subprocess.Popen(
        [warm_python(), "-m", "tests.multi_rank.starter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    for file in (server.stdin, server.stdout):
        assert file is not None
        file.close()
    server.wait(LIMIT_S)


def _call(module: str, folder: str, words: list[str]) -> NoReturn:
    """Call the function in this process, and exit."""
    signal.alarm(LIMIT_S)
    output = os.open(Path(folder, OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(output, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 0
    try:
        import_module(f"tests.multi_rank.{module}").main(Path(folder), *words)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    from tests.multi_rank.warm import warm_up

    warm_up()
    for line in sys.stdin:
        module, folder, *words = json.loads(line)
        pid = os.fork()
        if not pid:
            _call(module, folder, words)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
