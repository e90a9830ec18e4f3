"""Run surestep with several releases of torch, each in a separate environment.

    python -m tests.versions 2.6.0 2.9.1 2.14.1 2.15.0    # everything; prints the table of the docs
    python -m tests.versions 2.9.1 --python python3.12    # with another Python
    python -m tests.versions --names 2.6.0 2.15.0         # names.json only
    python -m tests.versions --ci 2.14.1                  # 90 s, or prints that it was not run

The environments stay in ~/.cache/surestep-versions, or in --folder: 5 GB each, downloaded once.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.versions import names
from tests.versions.checks import CHECKS, CheckError, Place, clear, run_laws, run_some_watch_tests

CACHE = Path.home() / ".cache" / "surestep-versions"
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))[
    "project"
]
PACKAGES = (*PROJECT["dependencies"], "scikit-learn", "pytest", "pytest-xdist")
CI_S = 90.0
INSTALLED = "installed"  # a file that is written last, with the packages


def install(folder: Path, release: str, python: str, end: float | None = None) -> Path:
    """Return the Python of an environment with a release of torch; make it if it is missing.

    Raises:
        subprocess.CalledProcessError: the release is not available.
        subprocess.TimeoutExpired: the installation takes too long.
    """
    home = folder / f"torch-{release}"
    own = home / "bin" / "python"
    installed, wanted = home / INSTALLED, "\n".join(PACKAGES)
    if not installed.exists():
        clear(home)
        subprocess.run([python, "-m", "venv", "--without-pip", home], check=True)
    if not installed.exists() or installed.read_text("utf-8") != wanted:
        # Without byte code, which takes a third of the time.
        pip = [sys.executable, "-m", "pip", "--python", own, "install", "-q", "--no-compile"]
        left = None if end is None else max(end - time.monotonic(), 0.1)
        command = [*pip, f"torch=={release}", *PACKAGES]
        subprocess.run(command, check=True, capture_output=True, timeout=left)
        installed.write_text(wanted, encoding="utf-8")
    return own


def check_release(python: Path, shared: Path, row: int) -> dict[str, str]:
    """Run every check; return for each "yes", "-" if the first row has nothing, or the error."""
    results = {}
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                results[name] = check(Place(python, Path(folder), shared, row=row)) or "yes"
            except CheckError as error:
                results[name] = f"no: {error}"
        print(f"  {name} ({time.monotonic() - began:.0f} s): {results[name]}", flush=True)
    return results


def describe(python: Path) -> str:
    """Return the versions of torch and of Python."""
    code = "import sys, torch; print(torch.__version__.partition('+')[0], sys.version.split()[0])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def run_ci(folder: Path, release: str, python: str) -> int:
    """Run the tests of watch and the core of the laws, in 90 s with the installation.

    Returns:
        The exit code: 1 if a test failed; 0 too if there was no time or no such release.
    """
    end = time.monotonic() + CI_S
    try:
        own = install(folder, release, python, end)
        with tempfile.TemporaryDirectory() as empty, ThreadPoolExecutor() as pool:
            place = Place(own, Path(empty), Path(empty), end)
            runs = [pool.submit(check, place) for check in (run_some_watch_tests, run_laws)]
            for run in runs:
                run.result()
    except CheckError as error:
        print(f"torch {release}: {error}")
        return 1
    except subprocess.TimeoutExpired:
        print(f"torch {release} was not run to the end: {CI_S:.0f} s were over.")
    except (subprocess.CalledProcessError, OSError):
        print(f"torch {release} was not run: it cannot be installed here.")
    else:
        print(f"torch {release}: the tests of watch and the core of the laws passed.")
    return 0


def main() -> int:
    """Run what is asked for; return 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("releases", nargs="+", metavar="RELEASE", help="of torch, such as 2.6.0")
    parser.add_argument("--folder", type=Path, default=CACHE, help="of the environments")
    parser.add_argument("--python", default=sys.executable, help="of a new environment")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--names", action="store_true", help="write names.json only")
    only.add_argument("--ci", action="store_true", help="some tests, 90 s at most")
    options = parser.parse_args()
    if options.ci:
        return max(run_ci(options.folder, release, options.python) for release in options.releases)
    pythons = {
        release: install(options.folder, release, options.python) for release in options.releases
    }
    wanted = names.collect_names()
    names.record({release: names.list_missing(own, wanted) for release, own in pythons.items()})
    if options.names:
        return 0
    shared, rows = clear(options.folder / "shared"), []
    for release, own in pythons.items():
        print(f"torch {release}:", flush=True)
        results = check_release(own, shared, len(rows))
        rows.append(
            [*describe(own).split(), *(text.partition(":")[0] for text in results.values())]
        )
    print("\n| " + " | ".join(["torch", "Python", *CHECKS]) + " |")
    print("|" + "---|" * (len(CHECKS) + 2))
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return int(any("no" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
