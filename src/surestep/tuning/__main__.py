"""`python -m surestep.tuning trial` and `... background`: the processes that a search starts."""

import sys

# As in `python -m surestep`: `-m` puts the current folder first on the path, where a numpy.py would
# hide numpy.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from importlib import import_module

from surestep.engine.step.gc import import_without_collecting


def main() -> int:
    """Import one of the modules, and call its `main` with the rest of the command line."""
    kind, *words = sys.argv[1:]
    with import_without_collecting():
        module = import_module(f"surestep.tuning.{kind}")
    code: int = module.main(words)
    return code


if __name__ == "__main__":
    sys.exit(main())
