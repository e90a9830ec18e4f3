"""A Python that starts in 0.05 s: its processes are forks of one that has imported torch.

`warm_python()` makes an executable to use instead of `sys.executable`. Each of its processes
is a client: the server forks a process for it, which has the client's arguments, environment,
working folder, limits, network, host name and files 0 to 2. The client forwards signals, ends as
that process ends, and takes it along when it is killed. If the server has ended, the client becomes
the real Python.

Processes that run the tests beside each other share a server, which `share_warm_python` starts.

What the start of a process decides needs a new Python. So does a test of process groups, or of
variables that torch reads at its import.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

_CLIENT = Path(__file__).with_name("client.py")
_SHARED = "SURESTEP_TESTS_WARM_PYTHON"  # an executable, of a server that answers soon


@cache
def warm_python() -> str:
    """Return an executable; the first call starts its server, if no other process shares one."""
    executable = os.environ.get(_SHARED)
    if executable is None:
        server = _Server()
        server.wait()
        return server.executable
    end = time.monotonic() + 300  # generous for a busy machine
    while not Path(executable).exists():
        assert time.monotonic() < end, "the shared server did not start"
        time.sleep(0.05)
    return executable


def share_warm_python() -> None:
    """Start a server for the processes that this one starts, and do not wait until it answers."""
    server = _Server()
    os.environ[_SHARED] = server.executable
    threading.Thread(target=server.wait, daemon=True).start()


class _Server:
    def __init__(self) -> None:
        atexit.register(self._end, os.getpid())
        self._folder = folder = Path(tempfile.mkdtemp(prefix="warm-"))
        self.executable = str(folder / "python")
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

    def wait(self) -> None:
        """Write the executable once the server answers."""
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        address = str(self._folder / "socket")
        constants = f"PYTHON = {sys.executable!r}\nADDRESS = {address!r}\n"
        text = f"#!{sys.executable} -ISE\n{constants}{_CLIENT.read_text(encoding='utf-8')}"
        written = self._folder / "written"
        written.write_text(text, encoding="utf-8")
        written.chmod(0o755)
        written.rename(self.executable)

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
