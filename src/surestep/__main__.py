"""`python -m surestep`, and `torchrun -m surestep`."""

import sys

from surestep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
