"""Write the tables of `docs/benchmarks.md` from the measurements of all rounds."""

import platform
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.contestants import CONTESTANTS
from benchmarks.worker import Measurement

Rounds = Mapping[str, Sequence[Measurement]]  # by contestant, one measurement per round

NOTES = """\
Every contestant trains the same model from the same weights on the same in-memory data, on one
thread. All use AdamW (lr 1e-3, weight decay 0.01), clip the gradients to norm 1.0, change the
learning rate in each step (linear warm-up, cosine), and read the loss on the host every 50 steps.
Start-up and shutdown are not timed. `make bench` (`python -m benchmarks.run`) runs every contestant
in five rounds, in a new order in each round. Each run has a fresh process, since the speed of a
step depends on what the process has allocated before. Ratios are computed within each round; the
table shows their median, with the lowest and the highest. The benchmark fails if a contestant takes
a different number of optimizer steps or ends with a different loss.

- **CPU** is the processor time of the process. Other programs on the machine affect it less than
  wall time.
- **Faults** are the page faults per step. They occur when glibc has returned memory to the kernel
  and needs it again.
- **MB** is the peak resident memory of the process, imports included.
- **Plain loop**: `DataLoader`, default `AdamW`, `LambdaLR`, `clip_grad_norm_`, no check for NaN.
- **Plain loop, freed memory retained**: the same, with the allocator settings of
  `cpu_allocator="huge_pages"` ([memory and speed](memory-and-speed.md)).
- **Plain loop, hand-optimized**: all optimizations in `benchmarks/loops/fast_by_hand.py`, the
  same allocator settings, and surestep's check for NaN.
- **surestep, defaults**: clipping, schedule, NaN check and events file are on; no checkpoints.
- **Other libraries**: progress bars, loggers, checkpoints and NaN filter are off, fused `AdamW` is
  on, and Lightning runs in its `barebones` mode. They do not check for NaN.
- **Differences.** surestep and the HF Trainer exclude biases and normalization layers from weight
  decay, which makes two parameter groups. surestep also reads the loss at the end of each epoch,
  and runs Python's garbage collector only at log points.
"""


def step_times(measurements: Sequence[Measurement]) -> list[float]:
    """List the microseconds per step, round by round."""
    return [measurement.step_us for measurement in measurements]


def cpu_times(measurements: Sequence[Measurement]) -> list[float]:
    """List the microseconds of processor time per step, round by round."""
    return [measurement.cpu_us for measurement in measurements]


def spread(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Write the median of the ratios of all rounds, the lowest and the highest."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def row(title: str, measurements: Sequence[Measurement], plain: Sequence[Measurement]) -> str:
    """Write a contestant's line of the table."""
    cells = [
        title,
        f"{median(step_times(measurements)):,.0f}",
        spread(step_times(measurements), step_times(plain)),
        f"{median(cpu_times(measurements)):,.0f}",
        spread(cpu_times(measurements), cpu_times(plain)),
        f"{median(measurement.faults for measurement in measurements):,.0f}",
        f"{median(measurement.peak_mb for measurement in measurements):,.0f}",
        f"{measurements[-1].final_loss:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def comparisons(rounds: Rounds) -> list[str]:
    """Compare surestep with the hand-optimized loop and with the fastest other library."""
    if "surestep" not in rounds:
        return []
    ours, lines = rounds["surestep"], []
    if "fast" in rounds:
        lines.append(f"- surestep / hand-optimized loop: {_both(ours, rounds['fast'])}")
    peers = [c for c in CONTESTANTS if c.is_peer and c.name in rounds]
    if peers:
        best = min(peers, key=lambda peer: median(cpu_times(rounds[peer.name])))
        lines.append(
            f"- surestep / fastest other library, {best.title}: {_both(ours, rounds[best.name])}"
        )
    return lines


def _both(ours: Sequence[Measurement], theirs: Sequence[Measurement]) -> str:
    wall = spread(step_times(ours), step_times(theirs))
    return f"{wall} of wall time, {spread(cpu_times(ours), cpu_times(theirs))} of processor time"


def table(title: str, rounds: Rounds, names: Sequence[str]) -> str:
    """Write a task's table, with a line for each contestant in `names`."""
    lines = [
        f"## {title}",
        "",
        "| | µs/step | ratio to plain | CPU µs/step | ratio to plain | faults | MB | loss |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for contestant in CONTESTANTS:
        if contestant.name in rounds:
            lines.append(row(contestant.title, rounds[contestant.name], rounds["plain"]))
        elif contestant.name in names:
            lines.append(f"| {contestant.title} | not installed | | | | | | |")
    extra = comparisons(rounds)
    return "\n".join([*lines, *([""] if extra else []), *extra]) + "\n"


def cpu_model() -> str:
    """Return the name of the processor from /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def page(tables: Sequence[str], rounds: int, command: str) -> str:
    """Write the whole page: what was run, on what, and the tables."""
    versions = {c.package: c.version for c in CONTESTANTS if c.version}
    packages = ", ".join(f"{package} {version}" for package, version in versions.items())
    where = f"{cpu_model()}, Python {platform.python_version()}"
    head = (
        f"# Benchmarks\n\nMeasured on {date.today()} by `{command}`: {rounds} rounds on {where}.\n"
    )
    return "\n".join([head, f"Versions: {packages}.\n", NOTES, *tables])
