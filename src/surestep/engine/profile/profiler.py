"""A look at a few steps with torch's profiler.

Source: https://docs.pytorch.org/docs/stable/profiler.html
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from surestep.engine.batch import Batch
from surestep.engine.profile.peak_flops import peak_flops
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback, Request
from surestep.engine.step.loop import Loop
from surestep.engine.step.train_step import StepResult

COSTLIEST = 10


@dataclass(frozen=True)
class Throughput:
    """How fast the profiled steps were; None is not known.

    Attributes:
        seconds: of all of them.
        samples: in all of them.
        waited: share of the time in which the next batch was waited for.
        flops: floating point operations of one step.
        peak: share of what the device can do at most.
    """

    seconds: float
    samples: int
    waited: float
    flops: float | None
    peak: float | None


class Profile(Callback):
    """Watch the steps `first` to `last`, counted from 1, and write what they did.

    A trace for Chrome's tracing page or Perfetto, and a table of the costliest operations. The
    operations of one step are counted in the step before the first, which that slows down. A run
    that goes on between them is watched from there on.

    Args:
        first: the first step.
        last: the last one.
        folder: where to write.
        loop: knows how long it waited for data.
    """

    def __init__(self, first: int, last: int, folder: Path, loop: Loop) -> None:
        self.first, self.last = first, last
        self.folder = folder
        self.loop = loop
        self._counter: FlopCounterMode | None = None
        self._flops: float | None = None
        self._profile: Any = None
        self._samples = 0
        self._told: str | None = None

    def on_batch(self, state: State, batch: Batch) -> Request | None:
        """Begin where it is time."""
        step = state.progress.step + 1
        # Dynamo gives up for good on what it first sees under a dispatch mode, as the counter is.
        if step == self.first - 1 and self.loop.plan.compile == "off":
            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()
        if self.first <= step <= self.last and self._profile is None:
            self.first = step  # a run that goes on may come in later
            activities = [ProfilerActivity.CPU]
            if self.loop.plan.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities)
            self._profile.__enter__()
            self._started, self._waited = time.perf_counter(), self.loop.data_wait_s
        return None

    def on_step(self, state: State, result: StepResult) -> Request | None:
        """End where it is time."""
        if self._counter is not None:
            self._count()
        if self._profile is not None:
            self._samples += result.samples
            if result.step >= self.last:
                self._write(result.step)
        return None

    def on_end(self, state: State) -> None:
        """End with a run that ended before."""
        if self._counter is not None:
            self._count()
        if self._profile is not None:
            self._write(state.progress.step)

    def notice(self) -> str | None:
        """Return what was found, once."""
        told, self._told = self._told, None
        return told

    def _count(self) -> None:
        assert self._counter is not None
        counter, self._counter = self._counter, None
        counter.__exit__(None, None, None)
        self._flops = float(counter.get_total_flops()) or None

    def _write(self, last: int) -> None:
        """Write the trace and the table.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.loop.plan.device.type == "cuda":
            torch.cuda.synchronize(self.loop.plan.device)
        seconds = time.perf_counter() - self._started
        watched, self._profile = self._profile, None
        watched.__exit__(None, None, None)
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.first}-{last}"
        trace = self.folder / f"trace-{name}.json"
        watched.export_chrome_trace(str(trace))
        steps = last - self.first + 1
        speed = self._speed(seconds, steps)
        lines = [*_figures(speed, steps), "", *_table(watched, seconds)]
        (self.folder / f"operations-{name}.txt").write_text("\n".join(lines) + "\n")
        title = f"Profile of steps {self.first} to {last}, with a trace in {trace}:"
        self._told = "\n".join([title, *lines])

    def _speed(self, seconds: float, steps: int) -> Throughput:
        waited = (self.loop.data_wait_s - self._waited) / seconds
        plan, peak = self.loop.plan, None
        if plan.device.type == "cuda" and self._flops is not None:
            most = peak_flops(torch.cuda.get_device_name(plan.device), plan.precision)
            peak = None if most is None else self._flops * steps / seconds / most
        return Throughput(seconds, self._samples, waited, self._flops, peak)


def _figures(speed: Throughput, steps: int) -> list[str]:
    flops = "not known" if speed.flops is None else f"{speed.flops * steps / speed.seconds:.3g}"
    peak = "not known" if speed.peak is None else f"{speed.peak:.0%}"
    return [
        f"samples a second: {speed.samples / speed.seconds:,.0f}",
        f"waiting for data: {speed.waited:.0%} of the time",
        f"floating point operations a second: {flops}; of the device's peak: {peak}",
    ]


def _table(watched: Any, seconds: float) -> list[str]:
    """Return the costliest operations by their own time, without what they call."""
    on_device = any(each.self_device_time_total for each in watched.key_averages())
    which = "self_device_time_total" if on_device else "self_cpu_time_total"
    operations = [each for each in watched.key_averages() if not each.is_user_annotation]
    rows = sorted(operations, key=lambda each: -getattr(each, which))[:COSTLIEST]
    lines = [f"{'operation':<44} {'calls':>7} {'ms':>9} {'of the time':>12}"]
    for each in rows:
        own = getattr(each, which) / 1e6
        share = own / seconds
        lines.append(f"{each.key[:44]:<44} {each.count:>7} {own * 1e3:>9.2f} {share:>12.1%}")
    return lines
