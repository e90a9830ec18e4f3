"""Run each rank: an undisturbed run, then the same run with DEATHS, by the command line.

One start of the launcher serves both; later attempts find the first run finished. With PART_DEATHS
two runs with a sharded model come before those.
"""

import os
import sys
from pathlib import Path

from surestep.cli.main import main

RECIPE = str(Path(__file__).with_name("killed_recipe.py"))


def both(out: Path, *options: str) -> int:
    """Train all; return the first nonzero exit code, or that of the last."""
    deaths, of_parts = os.environ.pop("DEATHS"), os.environ.pop("PART_DEATHS", "")
    shared = ("--parallel.strategy", "fsdp", *options)
    runs = [("shared whole", None, shared), ("shared killed", of_parts, shared)]
    runs = [*(runs if of_parts else []), ("whole", None, options), ("killed", deaths, options)]
    for name, dies, said in runs:
        os.environ.pop("DEATHS", None)
        if dies is not None:
            os.environ["DEATHS"] = dies
        if code := main(["train", RECIPE, "--run", str(out / name), *said]):
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(both(Path(sys.argv[1]), *sys.argv[2:]))
