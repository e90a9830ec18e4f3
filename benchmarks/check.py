"""The time of `surestep check` for 1,000 scripts, without and with cached results, and a package.

`python -m benchmarks.check` writes the examples of the rules, varied so that no two scripts are the
same, to a temporary folder. The package is surestep itself, whose files import each other.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import surestep
from surestep.doctor.rule import load_rules, read_example

SCRIPTS = 1000
PARTS = 3  # examples in one script: about 40 lines
PER_FOLDER = 50


def write_scripts(folder: Path) -> int:
    """Write the scripts; return how many lines they have."""
    examples = [
        read_example(example)
        for rule in load_rules()
        for kind in ("bad", "good")
        for example in rule.examples(kind).values()
    ]
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


def time_check(path: Path, cache: Path) -> tuple[float, str]:
    """Check a path in a process; return the seconds and the summary."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "surestep", "check", str(path)],
        env={**os.environ, "SURESTEP_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - started
    assert done.returncode in (0, 1), done.stderr
    return seconds, done.stdout.splitlines()[-1]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name, "scripts"), Path(name, "cache")
        folder.mkdir()
        print(f"{SCRIPTS} scripts, {write_scripts(folder)} lines")
        one = folder / "part0/script0.py"
        package = Path(surestep.__file__).parent
        cases = {"one script": one, "all": folder, "all, cached": folder, "package": package}
        for title, path in cases.items():
            seconds, summary = time_check(path, cache)
            print(f"{title}: {seconds:.2f} s: {summary}")


if __name__ == "__main__":
    main()
