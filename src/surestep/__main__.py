"""`python -m surestep`, and `torchrun -m surestep`."""

import sys

# `-m` puts the current folder first on the path, where a numpy.py would hide numpy. The command
# `surestep` does not, and `--nproc` starts each process by `-m`: both import the same modules.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from surestep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
