"""Measure surestep on a GPU in at most eight minutes, and write JSON and a page.

python -m benchmarks.gpu --prepare wheels      # where there is a network: its dependencies
python -m benchmarks.gpu --wheels wheels       # on the machine with the GPU, which has torch
python -m benchmarks.gpu --device cpu --minutes 1

It runs the parts in order of worth, each with a time limit, and writes the results after each of
them. What cannot be measured is a line with the reason.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.page import make_page
from benchmarks.gpu.parts import MINUTES, NAMES, PARTS
from benchmarks.gpu.schedule import PartResult, as_json, python_command, run_parts
from benchmarks.gpu.wheels import PROJECT, download, install

PACKAGES = ("torch", "surestep", "lightning", "accelerate", "transformers")
_FIND_GPU = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"


def describe_machine(gpu: str) -> dict[str, str]:
    """Return the device, and the versions of what is compared."""
    found = {"device": gpu or f"CPU, {os.cpu_count()} cores", "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def make_environment(wheels: Path | None, target: str) -> dict[str, str]:
    """Return the environment of the parts, in which they find surestep and its dependencies."""
    paths = [str(PROJECT / "src"), str(PROJECT)]
    if wheels is not None:
        install(wheels, Path(target))
        paths.append(target)
    before = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    # The sizes that fit are stored there, and must not be those of an earlier benchmark.
    own = {"SURESTEP_CACHE_DIR": f"{target}/cache"}
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *before]), **own}


def find_gpu() -> str:
    """Return the name of the GPU, or ""; another process asks, so this one does not use it."""
    answer = subprocess.run([sys.executable, "-c", _FIND_GPU], capture_output=True, text=True)
    return answer.stdout.strip()


def write_results(folder: Path, machine: dict[str, str], results: list[PartResult]) -> None:
    """Write both files; a reader never sees half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "parts": as_json(results)}
    texts = {"gpu.json": json.dumps(found, indent=1), "gpu.md": make_page(results, machine)}
    for name, text in texts.items():
        (folder / f"{name}.new").write_text(text, encoding="utf-8")
        (folder / f"{name}.new").replace(folder / name)
    result = results[-1]
    print(f"{result.seconds:6.1f} s  {result.title}  {result.missing}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the results")
    parser.add_argument("--parts", default="", help=f"of {','.join(NAMES)}; default: all")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="download wheels, and end")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="install these wheels")
    arguments = parser.parse_args()
    if arguments.prepare is not None:
        return download(arguments.prepare)
    names = [name for name in arguments.parts.split(",") if name] or list(NAMES)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(NAMES)}")
    if not arguments.minutes > 0:
        parser.error(f"--minutes {arguments.minutes:g} leaves no time; set --minutes 8")
    gpu = find_gpu() if arguments.device == "cuda" else ""
    if arguments.device == "cuda" and not gpu:
        parser.error("torch finds no GPU here; set --device cpu to try the benchmark")
    parts = [part for part in PARTS if part.name in names]
    machine = describe_machine(gpu)
    with tempfile.TemporaryDirectory() as target:
        run_parts(
            parts,
            partial(python_command, device=arguments.device),
            seconds=60 * arguments.minutes,
            has_gpu=bool(gpu),
            environment=make_environment(arguments.wheels, target),
            on_result=partial(write_results, arguments.out, machine),
        )
    print(f"Wrote {arguments.out / 'gpu.md'} and gpu.json", file=sys.stderr)


if __name__ == "__main__":
    main()
