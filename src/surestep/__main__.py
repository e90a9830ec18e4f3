"""The command `surestep`, `python -m surestep`, and `torchrun -m surestep`."""

import signal
import sys

# `-m` puts the current folder first on the path, where a numpy.py would hide numpy. The command
# `surestep` does not, and `--nproc` starts each process by `-m`: both import the same modules.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from surestep.base.errors import Preempted
from surestep.base.exit_codes import INTERRUPTED, STOPPED
from surestep.cli.stop import handle_early_signals, print_stop


def main() -> int:
    """Run the command of `sys.argv`; return its exit code. Signals count from here on."""
    words = sys.argv[1:]
    try:
        with handle_early_signals(words) as signals:
            try:
                from surestep.cli.main import main as run_command

                return run_command(words)
            finally:
                if signals is not None:  # Ctrl-C in Python's own end would print a traceback
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Preempted as stopped:
        print_stop(stopped)
        return STOPPED


if __name__ == "__main__":
    sys.exit(main())
