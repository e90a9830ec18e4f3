"""Start a command on several processes of this machine: torchrun does."""

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


def without_nproc(words: list[str]) -> list[str]:
    """Return a command line without --nproc, in either form it is typed in."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and not word.startswith("--nproc="):
            kept += [] if word == "--nproc" else [word]
        skip = word == "--nproc" and not skip
    return kept
