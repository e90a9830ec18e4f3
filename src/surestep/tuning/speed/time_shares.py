"""Measures where the time of a training step goes, in windows of steps beside plain ones.

The parts of a step add up to its time. On a GPU, each part begins and ends with a synchronization,
so that it has the time of its own kernels; "host" is what the kernels of a step do not fill of it.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from surestep.base.errors import ConfigError
from surestep.base.text import format_duration
from surestep.engine.device import wait_for
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.measured_peak import measure_peak_flops
from surestep.engine.profile.profiler import find_peak_flops
from surestep.engine.step.loop import Loop
from surestep.engine.step.multi_optimizer import OptimizerSet
from surestep.engine.step.train_step import StepResult
from surestep.tuning.speed.load_times import LoadTimes, measure_loading

STEP_PARTS = ("data", "host", "forward", "backward", "optimizer", "communication", "logging")
_METHODS = {
    **dict.fromkeys(("count_items", "finish_backward", "reduce_grads"), "communication"),
    **dict.fromkeys(("unscale", "clip_grad_norm", "step"), "optimizer"),
}
_MOST_OVERHEAD = 0.03  # of a step; above it, the lines have it
_ROUNDS = 5
_MISSING = object()


@dataclass(frozen=True)
class TimeShares:
    """Where the time of a step goes.

    Attributes:
        step_s: seconds of a step without timers.
        parts: the same with timers, by `STEP_PARTS`; they add up to such a step.
        overhead: how much longer a step with timers takes, as a share.
        loading: what loading the samples of a step takes in one process; None if it is not known.
        loading_note: why it is not known.
        flops: floating point operations of a step; None if they cannot be counted.
        peak_flops: the most that the device computes in a second.
        is_peak_measured: by a product of matrices, not from a data sheet.
        waits_known: whether the waits of a backward for other ranks are in "communication".
    """

    step_s: float
    parts: dict[str, float]
    overhead: float
    loading: LoadTimes | None
    loading_note: str
    flops: float | None
    peak_flops: float
    is_peak_measured: bool
    waits_known: bool

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part; they add up to 1."""
        total = sum(self.parts.values())
        return {name: seconds / total for name, seconds in self.parts.items()}

    @property
    def peak_share(self) -> float | None:
        """The share of the device's peak that a step computes; None if it is not known."""
        return None if self.flops is None else self.flops / self.step_s / self.peak_flops

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        return {**asdict(self), "shares": self.shares, "peak_share": self.peak_share}

    def describe(self) -> list[str]:
        """Return lines for the terminal, the largest part first."""
        lines = [f"A step takes {format_duration(self.step_s)}:"]
        for name, share in sorted(self.shares.items(), key=lambda item: -item[1]):
            if share:
                lines.append(f"  {name:<14} {share:>6.1%}  {format_duration(self.parts[name])}")
        loading = self.loading_note if self.loading is None else self.loading.describe()
        lines.append(f"Loading its samples: {loading}.")
        lines.append(f"Share of the device's peak: {self._describe_peak()}.")
        if self.overhead > _MOST_OVERHEAD:
            lines.append(
                f"The timers made the steps that they measured {self.overhead:.0%} slower."
            )
        if not self.waits_known:
            lines.append("What a backward waits for other ranks is in its own time.")
        return lines

    def _describe_peak(self) -> str:
        if self.peak_share is None:
            return "not known, since the operations of compiled code are not counted"
        source = "a product of matrices here" if self.is_peak_measured else "its data sheet"
        return f"{self.peak_share:.1%} of {self.peak_flops / 1e9:,.0f} GFLOP/s, by {source}"


def measure_shares(
    loop: Loop, steps: Iterator[StepResult], *, count: int, rounds: int = _ROUNDS
) -> TimeShares:
    """Measure the parts of a step, in windows that take turns with plain ones.

    If there are workers, no step can be taken of `steps` afterwards.

    It takes as many steps as `count_steps` says, or fewer; all ranks call it together.

    Args:
        loop: a loop whose first steps are taken: they compile and fill caches.
        steps: of this loop.
        count: steps in each window.
        rounds: pairs of windows.

    Raises:
        ConfigError: `count` or `rounds` is below 1.
    """
    if count < 1 or rounds < 1:
        raise ConfigError(f"count={count} and rounds={rounds} are not windows. Set 1 or more.")
    plain, timed, windows = list[float](), list[float](), list[dict[str, float]]()
    for _ in range(rounds):
        plain.append(_time_steps(loop, steps, count))
        with time_parts(loop) as clock:
            timed.append(_time_steps(loop, steps, count))
        windows.append(clock.read())
    parts = {name: statistics.mean(one[name] for one in windows) / count for name in STEP_PARTS}
    step_s = statistics.median(plain)
    if loop.plan.device.type == "cuda":
        parts = _separate_host(parts, step_s, _measure_kernels(loop, steps, count))
    peak, is_measured = _find_peak(loop.plan)
    flops = _count_flops(loop, steps)
    loading, note = measure_loading(loop.loader)  # last: it ends the iteration of workers
    return TimeShares(
        step_s,
        parts,
        overhead=statistics.median(timed) / step_s - 1,
        loading=loading,
        loading_note=note,
        flops=flops,
        peak_flops=peak,
        is_peak_measured=is_measured,
        waits_known=loop.world.size == 1 or loop.plan.device.type == "cpu",
    )


def count_steps(count: int, rounds: int = _ROUNDS) -> int:
    """Return how many steps `measure_shares` takes at most, which it does on a GPU."""
    return (2 * rounds + 1) * count + 1


def _time_steps(loop: Loop, steps: Iterator[StepResult], count: int) -> float:
    """Return the seconds of one of some steps."""
    wait_for(loop.plan.device)
    started = time.perf_counter()
    for _ in range(count):
        next(steps)
    wait_for(loop.plan.device)
    return (time.perf_counter() - started) / count


class StepClock:
    """Adds up the time of the parts of a step; at each moment one of them runs.

    Args:
        loop: knows how long it waited for data, and the device to wait for.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop, self._device = loop, loop.plan.device
        self._seconds = dict.fromkeys(STEP_PARTS, 0.0)
        self._waited_s, self._part = loop.log.data_wait_s, "host"
        self._since = time.perf_counter()
        self._last_gradient = 0.0

    def switch(self, part: str) -> str:
        """Begin a part; return the one that ends here."""
        wait_for(self._device)
        before, now = self._part, time.perf_counter()
        self._seconds[before] += now - self._since
        self._part, self._since = part, now
        return before

    def note_gradient(self, parameter: Tensor) -> None:
        """Note that a gradient is there; after the last one, a backward waits for other ranks."""
        self._last_gradient = time.perf_counter()

    def end_backward(self, then: str) -> None:
        """End a backward, and what it waited since its last gradient; begin another part."""
        began, last = self._since, self._last_gradient
        self.switch(then)
        waited_s = max(0.0, self._since - last) if last > began else 0.0
        self._seconds["backward"] -= waited_s
        self._seconds["communication"] += waited_s

    def read(self) -> dict[str, float]:
        """Return the seconds by part. The loop waits for data between two steps."""
        waited_s = self._loop.log.data_wait_s - self._waited_s
        return {**self._seconds, "data": waited_s, "host": self._seconds["host"] - waited_s}

    def time_calls(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are a part."""

        def call(*args: Any, **kwargs: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before)

        return call


@contextmanager
def time_parts(loop: Loop) -> Iterator[StepClock]:
    """Time the parts of the steps in a `with` block.

    A forward lasts from the call of the model to the backward, so that it has the loss. What a
    step of the Task, or one of L-BFGS, does beside the other parts counts as forward.
    """
    context, handles = loop.context, _find_handles(loop)
    then = "host" if context.custom_update is None else "forward"
    clock = StepClock(loop)
    with ExitStack() as stack:
        strategies = [context.strategy]
        if handles is not None:
            strategies = [handle.strategy for handle in handles.by_name.values()]
            add = clock.time_calls("backward", handles.add_gradient)
            stack.enter_context(_replace(handles, "add_gradient", add))
        for strategy in strategies:
            for name, part in _METHODS.items():
                stack.enter_context(
                    _replace(strategy, name, clock.time_calls(part, getattr(strategy, name)))
                )
            backward = _end_forward(clock, strategy.backward, then)
            stack.enter_context(_replace(strategy, "backward", backward))
            module = _TimedModule(strategy.module, clock)
            stack.enter_context(_replace(strategy, "module", module))
            if loop.world.size > 1 and loop.plan.device.type == "cpu":
                for parameter in strategy.parameters:
                    hooked: Any = parameter  # torch's method has no types
                    hook = hooked.register_post_accumulate_grad_hook(clock.note_gradient)
                    stack.callback(hook.remove)
        stack.enter_context(_replace(loop.log, "take", clock.time_calls("logging", loop.log.take)))
        if context.custom_update is not None:
            update = clock.time_calls("forward", context.custom_update)
            stack.enter_context(_replace(context, "custom_update", update))
        yield clock
        clock.switch("host")


def _find_handles(loop: Loop) -> OptimizerSet | None:
    """Return the optimizers of a step of the Task, each with its own strategy."""
    arguments = getattr(loop.context.custom_update, "args", ())
    return next((one for one in arguments if isinstance(one, OptimizerSet)), None)


def _end_forward(clock: StepClock, function: Callable[..., None], then: str) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        clock.switch("backward")
        try:
            function(*args, **kwargs)
        finally:
            clock.end_backward(then)

    return call


class _TimedModule:
    """A module whose calls begin the forward; otherwise the module itself."""

    def __init__(self, module: Any, clock: StepClock) -> None:
        self._module, self._clock = module, clock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._clock.switch("forward")
        return self._module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextmanager
def _replace(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object; afterwards it has what it had, also if it had none itself."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _measure_kernels(loop: Loop, steps: Iterator[StepResult], count: int) -> float:
    """Return the seconds of a step in which the GPU computes."""
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        _time_steps(loop, steps, count)
    total_us: float = sum(one.self_device_time_total for one in record.key_averages())
    return total_us / 1e6 / count


def _separate_host(parts: dict[str, float], step_s: float, kernels_s: float) -> dict[str, float]:
    """Return the parts of a plain step, of which the kernels fill some time.

    Forward, backward and optimizer share the time of the kernels as their own times do; the time
    that no part needs is that of the host.
    """
    others_s = parts["data"] + parts["communication"] + parts["logging"]
    computing = ("forward", "backward", "optimizer")
    measured_s = sum(parts[name] for name in computing)
    busy_s = min(kernels_s, max(0.0, step_s - others_s))
    scaled = {name: parts[name] / measured_s * busy_s for name in computing}
    return {**parts, **scaled, "host": max(0.0, step_s - others_s - busy_s)}


def _find_peak(plan: Plan) -> tuple[float, bool]:
    """Return the peak operations a second, and whether it was measured."""
    known = find_peak_flops(plan)
    if known is not None:
        return known, False
    return measure_peak_flops(plan.device, plan.precision), True


def _count_flops(loop: Loop, steps: Iterator[StepResult]) -> float | None:
    """Count the operations of one step; in compiled code, the counter sees none."""
    if loop.plan.compile != "off":  # Dynamo gives up on what it first sees under such a mode
        next(steps)
        return None
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        next(steps)
    return float(counter.get_total_flops()) or None
