"""Turn the answers of all rounds into the tables of `docs/benchmarks.md`."""

import platform
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.contestants import CONTESTANTS
from benchmarks.intervals import Interval, difference, ratio
from benchmarks.worker import Answer

Rounds = Mapping[str, Sequence[Answer]]  # by contestant, one answer per round

NOTES = """\
Every contestant trains the same model from the same weights on the same in-memory data, on one
thread: AdamW (lr 1e-3, weight decay 0.01), gradients clipped to norm 1.0, a schedule per step
(linear warm-up, cosine), the loss read on the host every 50 steps. Start-up and tear-down are not
timed. Contestants take turns round by round, in a new order each round, each in a process of its
own; the ratio is taken within each round, and the table shows its median with a 95% bootstrap
interval. A run fails if a contestant takes another number of optimizer steps or ends with another
loss.

- **Plain loop**: `DataLoader`, default `AdamW`, `LambdaLR`, `clip_grad_norm_`. No guard.
- **Made fast by hand**: every trick in `benchmarks/loops/fast_by_hand.py`, and surestep's guard.
- **surestep**: defaults, so clipping, schedule, guard and events file are on; no checkpoints.
- **Peers**: bars, loggers, checkpoints and NaN filter off, fused `AdamW` on, Lightning in its
  `barebones` mode: every switch a user can set, but no code of one's own. No guard.
- surestep and the HF Trainer keep biases and normalisation out of weight decay (two groups), the
  others do not. surestep also reads at the end of each epoch, and lets Python's garbage collector
  run at log points only; the others leave it as it is.
"""


def step_times(answers: Sequence[Answer]) -> list[float]:
    """List the microseconds per step, round by round."""
    return [answer.step_us for answer in answers]


def format_ratio(interval: Interval) -> str:
    return f"{interval.middle:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def format_us(interval: Interval) -> str:
    return f"{interval.middle:+.0f} µs [{interval.low:+.0f}, {interval.high:+.0f}]"


def row(title: str, answers: Sequence[Answer], plain: Sequence[float]) -> str:
    """Write a contestant's line of the table."""
    times = step_times(answers)
    against = format_ratio(ratio(times, plain))
    return f"| {title} | {median(times):,.0f} | {against} | {answers[-1].final_loss:.3f} |"


def comparisons(rounds: Rounds) -> list[str]:
    """Compare surestep with the loop made fast by hand and with the fastest peer."""
    if "surestep" not in rounds:
        return []
    ours, lines = step_times(rounds["surestep"]), []
    if "fast" in rounds:
        over = format_us(difference(ours, step_times(rounds["fast"])))
        lines.append(f"- surestep over the loop made fast by hand: {over} a step")
    peers = [c for c in CONTESTANTS if c.is_peer and c.name in rounds]
    if peers:
        best = min(peers, key=lambda peer: median(step_times(rounds[peer.name])))
        against = format_ratio(ratio(ours, step_times(rounds[best.name])))
        lines.append(f"- surestep to the fastest peer, {best.title}: {against}")
    return lines


def table(title: str, rounds: Rounds, names: Sequence[str]) -> str:
    """Write a task's table, with a line for each contestant in `names`."""
    plain = step_times(rounds["plain"])
    lines = [
        f"## {title}",
        "",
        "| | µs/step | to the plain loop [95%] | final loss |",
        "|---|---:|---:|---:|",
    ]
    for contestant in CONTESTANTS:
        if contestant.name in rounds:
            lines.append(row(contestant.title, rounds[contestant.name], plain))
        elif contestant.name in names:
            lines.append(f"| {contestant.title} | not installed | | |")
    extra = comparisons(rounds)
    return "\n".join([*lines, *([""] if extra else []), *extra]) + "\n"


def cpu_model() -> str:
    """Name the processor, as Linux tells it."""
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
    head = f"# Benchmarks\n\nMade on {date.today()} by `{command}`: {rounds} rounds on {where}.\n"
    return "\n".join([head, f"Versions: {packages}.\n", NOTES, *tables])
