"""A Python that starts in 0.05 s: its processes are forks of one that has imported torch.

`warm_python()` makes an executable to use instead of `sys.executable`. Each of its processes
is a client: the server forks a process for it, which has the client's arguments, environment,
working folder, limits, network, host name and files 0 to 2. The client forwards signals, ends as
that process ends, and takes it along when it is killed. If the server has ended, the client becomes
the real Python.

What the start of a process decides needs a new Python. So does a test of process groups, or of
variables that torch reads at its import.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_CLIENT = Path(__file__).with_name("client.py")


@cache
def warm_python() -> str:
    """Return the executable of this process; the first call starts its server."""
    return _Server().executable


class _Server:
    def __init__(self) -> None:
        atexit.register(self._end, os.getpid())
        self._folder = folder = Path(tempfile.mkdtemp(prefix="warm-"))
        self.executable = str(folder / "python")
        constants = f"PYTHON = {sys.executable!r}\nADDRESS = {str(folder / 'socket')!r}\n"
        text = f"#!{sys.executable} -ISE\n{constants}{_CLIENT.read_text(encoding='utf-8')}"
        Path(self.executable).write_text(text, encoding="utf-8")
        Path(self.executable).chmod(0o755)
        command = [sys.executable, "-m", "tests.warm", str(folder / "socket")]
        root = Path(__file__).parents[2]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def _end(self, owner: int) -> None:
        if os.getpid() != owner:  # a fork that ends as Python does, and not by `os._exit`
            return
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        if (code := self._server.poll()) is not None:
            print(f"The server of warm processes ended early, with {code}.", file=sys.__stderr__)
        self._server.stdin.close()
        self._server.wait(120)
        self._server.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
