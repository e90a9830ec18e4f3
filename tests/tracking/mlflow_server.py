"""An MLflow server on loopback that keeps everything in SQLite; it can be killed and started again.

    python -m tests.tracking.mlflow_server

Importing MLflow's server takes two processes 3 s each. So a process imports it once, and a server
is a fork of that process: it runs the application that `mlflow server` runs, with its environment.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.multi_rank.torchrun import free_port


class Server:
    """An MLflow server, which can be killed and started again.

    Args:
        folder: for its database and its artifacts.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._pid: str | None = None

    def start(self) -> None:
        """Start it; return when it answers."""
        self._pid = _forks().ask(f"start {self.port} {self._folder}")
        for _ in range(1800):
            time.sleep(0.1)
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1):
                    return
            except OSError:
                state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
                assert state != "Z", "the server has ended"
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """End it by SIGKILL, if it runs."""
        if self._pid is not None:
            assert _forks().ask(f"kill {self._pid}") == str(int(signal.SIGKILL))
            self._pid = None


class _Forks:
    """The process that has imported MLflow's server."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tracking.mlflow_server"],
            # Its job runners are six more processes, each of which imports MLflow.
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            **{"stdin": pipe, "stdout": pipe, "stderr": subprocess.DEVNULL, "text": True},
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        atexit.register(self._end)

    def ask(self, line: str) -> str:
        """Send a line; return the line that is answered."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()


@cache
def _forks() -> _Forks:
    return _Forks()


def _serve(port: int, folder: Path, empty: Path) -> None:
    """Be a server; a new one gets a copy of the empty database."""
    import uvicorn
    from mlflow.server import (
        ARTIFACT_ROOT_ENV_VAR,
        ARTIFACTS_DESTINATION_ENV_VAR,
        BACKEND_STORE_URI_ENV_VAR,
        SERVE_ARTIFACTS_ENV_VAR,
        fastapi_app,
    )

    if not (folder / "mlflow.db").exists():
        shutil.copy(empty, folder / "mlflow.db")
    os.environ[BACKEND_STORE_URI_ENV_VAR] = f"sqlite:///{folder}/mlflow.db"
    os.environ[ARTIFACT_ROOT_ENV_VAR] = "mlflow-artifacts:/"
    os.environ[SERVE_ARTIFACTS_ENV_VAR] = "true"
    os.environ[ARTIFACTS_DESTINATION_ENV_VAR] = str(folder / "artifacts")
    uvicorn.run(fastapi_app.app, host="127.0.0.1", port=port)


def main() -> None:
    """Start and kill servers until the input ends."""
    import mlflow.server.fastapi_app
    import uvicorn  # noqa: F401

    from surestep.tracking.mlflow_store import create_store

    del mlflow
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with TemporaryDirectory() as folder:
        empty = Path(folder) / "mlflow.db"
        create = os.fork()  # the engine of a database must not be forked
        if not create:
            create_store(f"sqlite:///{empty}")
            os._exit(0)
        os.waitpid(create, 0)
        pids = set()
        for line in sys.stdin:
            what, *words = line.split(maxsplit=2)
            if what == "start":
                answer = os.fork()
                if not answer:
                    os.close(0)
                    _serve(int(words[0]), Path(words[1].strip()), empty)
                    os._exit(0)
                pids.add(answer)
            else:
                pid = int(words[0])
                os.kill(pid, signal.SIGKILL)
                answer = os.waitpid(pid, 0)[1]
                pids.remove(pid)
            print(answer, file=answers, flush=True)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
