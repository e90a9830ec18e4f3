"""The command `surestep`, `python -m surestep`, and `torchrun -m surestep`."""

import sys

# `-m` puts the current folder first on the path, where a numpy.py would hide numpy. The command
# `surestep` does not, and `--nproc` starts each process by `-m`: both import the same modules.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from surestep.base.noted_signals import NotedSignals


def main() -> int:
    """Run the command of `sys.argv`; return its exit code. Signals count from here on."""
    with NotedSignals() as noted:
        from surestep.cli.stop import run_stoppable

        return run_stoppable(_run_command, sys.argv[1:], noted)


def _run_command(words: list[str]) -> int:
    from surestep.cli.main import main as run

    return run(words)


if __name__ == "__main__":
    sys.exit(main())
