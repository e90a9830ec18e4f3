"""Measure the checks of the first batch, and the first step, of the MLP of benchmarks.run.

python -m benchmarks.first_batch [--processes N]

Each measurement starts a process, since the first call of much of torch takes longer than
later ones. The times are wall times on one core.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import surestep
from benchmarks.step_time import make_task
from surestep.engine.checks.first_batch import check_first_batch
from surestep.trainer import build


def plain(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy, as a function whose denominator is only declared."""
    return functional.cross_entropy(outputs, targets)


def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of outputs with noise."""
    return plain(outputs + 0.1 * torch.randn_like(outputs), targets)


LOSSES: dict[str, Any] = {"loss of torch": None, "function": plain, "function that draws": noisy}


def measure(name: str) -> dict[str, float]:
    """Return the times of a run in this process, in ms."""
    torch.set_num_threads(1)
    task, options = make_task("mlp")
    if LOSSES[name] is not None:
        task = replace(task, loss=LOSSES[name])
    options |= {"max_steps": 10, "logging.progress": "quiet", "checkpoint.every": "off"}
    took: dict[str, float] = {}

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return check_first_batch(*args, **kwargs)
        finally:
            took["checks"] = 1e3 * (time.perf_counter() - began)

    vars(build)["check_first_batch"] = timed
    with tempfile.TemporaryDirectory() as folder:
        config = surestep.Config.from_options(options)
        with surestep.prepare(task, config, run=Path(folder) / "run") as session:
            began = time.perf_counter()
            next(session.steps())
            took["first step"] = 1e3 * (time.perf_counter() - began)
    return took


def main() -> None:
    """Print a line for each loss."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--one", help="measure one of the losses in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    command = [sys.executable, "-m", "benchmarks.first_batch", "--one"]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOSSES}
    for _ in range(options.processes):
        for name, times in found.items():
            times.append(json.loads(subprocess.check_output([*command, name]).splitlines()[-1]))
    for name, times in found.items():
        for what in times[0]:
            values = [measured[what] for measured in times]
            print(
                f"  {name:20} {what:10}  median {statistics.median(values):6.1f} ms, "
                f"least {min(values):6.1f} ms"
            )


if __name__ == "__main__":
    main()
