"""Start a command on several processes of this machine; read what launchers put before it."""

import subprocess
import sys

from surestep.base.errors import ConfigError
from surestep.engine.parallel.launch import read_launched


def launch(processes: int, words: list[str]) -> int:
    """Run a command on so many processes; return torchrun's exit code.

    Raises:
        ConfigError: less than one, or this process was started by a launcher already.
    """
    if processes < 1:
        raise ConfigError(f"--nproc {processes} is not allowed: say how many processes, such as 2.")
    if read_launched().size > 1:
        raise ConfigError(
            f"--nproc {processes}, but {read_launched().by} has started several processes already. "
            "Say it in one place: leave --nproc out."
        )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", str(processes), "-m", "surestep", "--"]
    # Ctrl-C reaches torchrun too, which hands it on and waits for the processes to save.
    with subprocess.Popen([*command, *without_nproc(words)]) as started:
        while True:
            try:
                return started.wait()
            except KeyboardInterrupt:
                continue


def without_launchers_words(words: list[str]) -> list[str]:
    """Return a command line without what a launcher put before the command.

    deepspeed says --local_rank=0, older launchers of torch --local-rank=0, which the environment
    says too. A -- that keeps torchrun from reading our options comes through on Python 3.13.
    """
    first = words[0] if words else ""
    if first == "--" or first.startswith(("--local_rank=", "--local-rank=")):
        return without_launchers_words(words[1:])
    return words


def without_nproc(words: list[str]) -> list[str]:
    """Return a command line without --nproc, in either form it is typed in."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and not word.startswith("--nproc="):
            kept += [] if word == "--nproc" else [word]
        skip = word == "--nproc" and not skip
    return kept
