"""Call torchrun on this machine, and read the results of its runs."""

import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from surestep.record.run import Run
from tests.multi_rank.killed_recipe import task
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
UNHARMED = {
    "DEATHS": "",
    "SLOW_SAVES": "0",
}  # the settings of `killed_recipe.py` for an undisturbed run


def launch(*words: str, timeout_s: float = 600, **said: str) -> subprocess.CompletedProcess[str]:
    """Call torchrun with a number of processes and a module; return the finished process.

    Args:
        words: the number, options, and what to run.
        timeout_s: ends a call that hangs.
        said: to the processes, in their environment.
    """
    torchrun = [warm_python(), "-m", "torch.distributed.run", "--standalone"]
    return called([*torchrun, "--nproc-per-node", *words], timeout_s, **said)


def called(
    command: list[str], timeout_s: float = 600, **said: str
) -> subprocess.CompletedProcess[str]:
    """Call a launcher with the tests importable and one thread per process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **said}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, env=environment
    )


def check_ended_well(done: subprocess.CompletedProcess[str]) -> None:
    """Fail with the first error that was printed: torchrun prints a long text of its own after."""
    first = max(0, done.stderr.find("Traceback"))
    assert done.returncode == 0, done.stderr[first:][:4000]


@cache
def results_of(folder: Path, ranks: int) -> list[dict[Any, Any]]:
    """Return the results of the ranks of a launch, which are read once: they take 0.3 s."""
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(ranks)]


def free_port() -> int:
    """Return a port for a server that is started later, and reserve it until this process ends.

    The server can listen on it, since it also sets SO_REUSEADDR. No other process is given it:
    each group of gloo asks for a port, and a rank 0 without its port leaves rank 1 waiting.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = int(reserved.getsockname()[1])
    reserved.detach()  # this process keeps the descriptor
    return port


def last_weights(folder: Path) -> torch.Tensor:
    net = task().model
    Run(folder).load_model(net, which="last")
    return torch.cat([each.flatten() for each in net.state_dict().values()])


def resumed_from(folder: Path) -> list[int]:
    return [each["step"] for each in Run(folder).events() if each["event"] == "resume"]
