"""The time of `surestep check` for 1,000 scripts, without and with cached results, and packages.

python -m benchmarks.check [PACKAGE...]

It writes the examples of the rules, varied so that no two scripts are the same, to a temporary
folder. The files of a package import each other, so they take longer: surestep, if none is named.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "tests" / "doctor" / "rules"
SCRIPTS = 1000
PARTS = 3  # examples in one script: about 50 lines
PER_FOLDER = 50


def write_scripts(folder: Path) -> int:
    """Write the scripts; return how many lines they have."""
    examples = [path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*/*.py"))]
    lines = 0
    for number in range(SCRIPTS):
        parts = [examples[(number * PARTS + part) % len(examples)] for part in range(PARTS)]
        text = "\n\n".join(
            f"def run_{part}():\n" + "\n".join(f"    {line}" for line in example.splitlines())
            for part, example in enumerate(parts)
        )
        path = folder / f"part{number // PER_FOLDER}" / f"script{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# script {number}\n{text}\n", encoding="utf-8")
        lines += text.count("\n") + 2
    return lines


def find_package(name: str) -> Path:
    """Return the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"No package {name!r} is installed.")
    return Path(spec.submodule_search_locations[0])


def time_check(paths: list[Path], cache: Path) -> tuple[float, str]:
    """Check paths in a process; return the seconds and the summary."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "surestep", "check", *map(str, paths)],
        env={**os.environ, "SURESTEP_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - started
    assert done.returncode in (0, 1), done.stderr
    return seconds, done.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("packages", nargs="*", default=["surestep"], metavar="PACKAGE")
    packages = [find_package(name) for name in parser.parse_args().packages]
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name, "scripts"), Path(name, "cache")
        folder.mkdir()
        print(f"{SCRIPTS} scripts, {write_scripts(folder)} lines")
        one = folder / "part0/script0.py"
        cases = {
            "one script": [one],
            "all": [folder],
            "all, cached": [folder],
            "packages": packages,
        }
        for title, paths in cases.items():
            seconds, summary = time_check(paths, cache)
            print(f"{title}: {seconds:.2f} s: {summary}")


if __name__ == "__main__":
    main()
