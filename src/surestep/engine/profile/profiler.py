"""Record a few steps with torch's profiler.

Source: https://docs.pytorch.org/docs/stable/profiler.html
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from surestep.base.paths import FixedPath
from surestep.engine.batch import Batch
from surestep.engine.distributed.gloo_threads import wait_until_idle
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.callback import Request
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepResult

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

_MOST_EXPENSIVE = 10  # operations in the table
# Dense products in 10^12 a second by device name and precision; the first name that fits counts.
# Source: NVIDIA's data sheets, https://www.nvidia.com/en-us/data-center/
PEAKS: dict[str, dict[str, float]] = {
    "H200": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "H100 PCIe": {"bf16": 756, "fp16": 756, "tf32": 378, "fp32": 51},
    "H100": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "A100": {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5},
    "L40S": {"bf16": 362, "fp16": 362, "tf32": 183, "fp32": 91.6},
    "L4": {"bf16": 121, "fp16": 121, "tf32": 60, "fp32": 30.3},
    "A10": {"bf16": 125, "fp16": 125, "tf32": 62.5, "fp32": 31.2},
    "V100": {"fp16": 125, "fp32": 15.7},
    "T4": {"fp16": 65, "fp32": 8.1},
}


def peak_flops(device: str, precision: str) -> float | None:
    """Return the peak operations a second of a device by its name; None if not known."""
    peaks = next((peaks for name, peaks in PEAKS.items() if name in device), {})
    return peaks[precision] * 1e12 if precision in peaks else None


def find_peak_flops(plan: Plan) -> float | None:
    """Return the peak operations a second of the device of a Plan; None if not known."""
    on_cuda = plan.device.type == "cuda"
    device = torch.cuda.get_device_name(plan.device) if on_cuda else ""
    return peak_flops(device, plan.precision)


class Profile(Part):
    """Records steps such as "10:20", counted from 1; a run resumed between them joins there.

    It writes a trace for Chrome or Perfetto, and a table of the most expensive operations. The
    operations of one step are counted in the step before the first, which that slows down.

    The loop knows how long it waited for data.
    """

    folder = FixedPath()

    def __init__(self, steps: str, folder: Path, loop: Loop) -> None:
        self.first, self.last = map(int, steps.split(":"))
        self.folder = folder
        self.loop = loop
        self._counter: FlopCounterMode | None = None
        self._flops: float | None = None
        self._profile: Any = None
        self._samples = 0
        self._notice: str | None = None

    def on_start(self, state: State) -> str | None:
        """Return that a run which resumes is past the last step."""
        if state.progress.step < self.last:
            return None
        steps = self.loop.plan.profile
        return f"profile={steps!r} is over: the run is at step {state.progress.step}."

    def on_batch(self, state: State, batch: Batch) -> Request | None:
        """Begin at the first step."""
        step = state.progress.step + 1
        # Dynamo gives up for good on what it first sees under a dispatch mode, as the counter is.
        if step == self.first - 1 and self.loop.plan.compile == "off":
            # Builds for CUDA import triton with it, which reports leaks when Python ends.
            from torch.utils.flop_counter import FlopCounterMode

            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()
        if self.first <= step <= self.last and self._profile is None:
            self.first = step  # a resumed run may join later
            activities = [ProfilerActivity.CPU]
            if self.loop.plan.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities)
            self._profile.__enter__()
            self._started, self._waited = time.perf_counter(), self.loop.log.data_wait_s
            self._parts, self._end_timing = self.loop.parts.time()
        return None

    def on_step(self, state: State, result: StepResult) -> Request | None:
        """End after the last step."""
        self._count()
        if self._profile is not None:
            self._samples += result.samples
            if result.step >= self.last:
                self._write(result.step)
        return None

    def on_end(self, state: State) -> None:
        """End with a run that ends early."""
        self._count()
        if self._profile is not None:
            self._write(state.progress.step)

    def on_log(self, state: State, point: LogPoint) -> str | None:
        """Return what was found, once."""
        notice, self._notice = self._notice, None
        return notice

    def _count(self) -> None:
        if self._counter is not None:
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
        self._end_timing()
        wait_until_idle()
        record, self._profile = self._profile, None
        record.__exit__(None, None, None)
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.first}-{last}"
        trace = self.folder / f"trace-{name}.json"
        record.export_chrome_trace(str(trace))
        parts = [
            f"{part:<44} {own_s * 1e3:>17.2f} {own_s / seconds:>12.1%}"
            for part, own_s in sorted(self._parts.items(), key=lambda item: -item[1])
        ]
        lines = [
            *self._throughput(seconds, last - self.first + 1),
            *("", *_table(record, seconds)),
            *(
                "",
                f"{'part of the run beside the step':<44} {'ms':>17} {'of the time':>12}",
                *parts,
            ),
        ]
        (self.folder / f"operations-{name}.txt").write_text("\n".join(lines) + "\n")
        title = f"Profile of steps {self.first} to {last}, with a trace in {trace}:"
        self._notice = "\n".join([title, *lines])

    def _throughput(self, seconds: float, steps: int) -> list[str]:
        waited = (self.loop.log.data_wait_s - self._waited) / seconds
        plan, flops, share = self.loop.plan, "not known", "not known"
        if self._flops is not None:
            per_second = self._flops * steps / seconds
            flops = f"{per_second:.3g}"
            peak = find_peak_flops(plan)
            share = share if peak is None else f"{per_second / peak:.0%}"
        return [
            f"samples a second: {self._samples / seconds:,.0f}",
            f"waiting for data: {waited:.0%} of the time",
            f"floating point operations a second: {flops}; of the device's peak: {share}",
        ]


def _table(record: Any, seconds: float) -> list[str]:
    """Return the most expensive operations by their own time, without what they call."""
    averages = record.key_averages()
    on_device = any(operation.self_device_time_total for operation in averages)
    attribute = "self_device_time_total" if on_device else "self_cpu_time_total"
    operations = [operation for operation in averages if not operation.is_user_annotation]
    operations.sort(key=lambda operation: -getattr(operation, attribute))
    lines = [f"{'operation':<44} {'calls':>7} {'ms':>9} {'of the time':>12}"]
    for operation in operations[:_MOST_EXPENSIVE]:
        own_s = getattr(operation, attribute) / 1e6
        share = own_s / seconds
        lines.append(
            f"{operation.key[:44]:<44} {operation.count:>7} {own_s * 1e3:>9.2f} {share:>12.1%}"
        )
    return lines
