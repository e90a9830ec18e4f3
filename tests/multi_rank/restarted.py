"""What each rank does: a run that nobody kills, then the same one with DEATHS, by the command line.

One start of the launcher serves both; the later attempts find the first run finished.
"""

import os
import sys
from pathlib import Path

from surestep.cli.main import main

RECIPE = str(Path(__file__).with_name("mortal.py"))


def both(out: Path, *options: str) -> int:
    """Train both; return the exit code of what went wrong first, or of the second."""
    deaths = os.environ.pop("DEATHS")
    code = main(["train", RECIPE, "--run", str(out / "whole"), *options])
    os.environ["DEATHS"] = deaths
    return code or main(["train", RECIPE, "--run", str(out / "killed"), *options])


if __name__ == "__main__":
    raise SystemExit(both(Path(sys.argv[1]), *sys.argv[2:]))
