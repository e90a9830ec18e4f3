"""Show progress while training, on stderr: a bar, plain lines, or nothing."""

import errno
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm.auto import tqdm

from surestep.base.text import escape_control_chars, format_bytes
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.callback import Request
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepResult

WIDE = 110  # columns of a bar with all its numbers
EVERY_S = 2.0  # between plain lines if logging.every is not set
TRANSFER_EVERY_S = 10.0  # between plain lines about what is sent when the run has ended
LEAST_BAR = 10  # columns of the bar itself, which the trend of the loss leaves
CELLS = 12  # characters of the trend
BLOCKS = "▁▂▃▄▅▆▇█"
logger = logging.getLogger("surestep")
ShowSent = Callable[[int, int], None]


@contextmanager
def _ignore_closed_output() -> Iterator[None]:
    """Ignore that the terminal or the reader of a pipe is gone: training continues.

    A terminal that closes sends SIGHUP, which stops the run.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise


class NullProgress(Part):
    """Shows nothing; lines go to the `logging` module only."""

    def print_line(self, text: str) -> None:
        """Show a line."""
        logger.info(escape_control_chars(text))

    @contextmanager
    def show_transfer(self, name: str) -> Iterator[ShowSent]:
        """Show what is still sent when the run has ended.

        Args:
            name: of the destination.

        Yields:
            A function that shows how many bytes are sent, and of how many.
        """
        yield lambda done, total: None

    def close(self) -> None:
        """Leave the display as it is."""


class PlainProgress(NullProgress):
    """Prints a line for a log point every few seconds."""

    def __init__(self, plan: Plan, every_s: float | None = None, out: TextIO | None = None) -> None:
        self.total = plan.total_steps
        if every_s is None:  # show every log point of a period that the user set
            every_s = 0.0 if plan.reason("logging.every").startswith("set ") else EVERY_S
        self.every_s = every_s
        self._last = -self.every_s
        self._out = out

    def print_line(self, text: str) -> None:
        """Show a line."""
        super().print_line(text)
        with _ignore_closed_output():
            print(escape_control_chars(text), file=self._out or sys.stderr, flush=True)

    def on_log(self, state: State, point: LogPoint) -> None:
        """Show a log point."""
        now = time.monotonic()
        step = point.first_step + len(point.loss) - 1
        if now - self._last >= self.every_s or step == self.total:
            self._last = now
            numbers = "  ".join(f"{name} {text}" for name, text in format_numbers(point).items())
            progress = f"step {step}/{self.total}  epoch {point.epoch + 1}"
            if step > self.total:  # by train_step(), after the end
                progress = f"step {step}, after the {self.total} of the run"
            self.print_line(f"{progress}  {numbers}")

    @contextmanager
    def show_transfer(self, name: str) -> Iterator[ShowSent]:
        """Show what is still sent when the run has ended, in a line every few seconds."""
        due = -math.inf

        def show(done: int, total: int) -> None:
            nonlocal due
            if (now := time.monotonic()) >= due:
                due = now + TRANSFER_EVERY_S
                sent = f"{format_bytes(done)} of {format_bytes(total)}"
                self.print_line(f"Sending the rest to {name}: {sent}. Ctrl-C ends the wait.")

        yield show


class LossTrend:
    """The loss since the start of this process, as a few characters of different heights.

    Each is the mean of as many log points, except for the last, which is the mean of those so far.
    The heights are logarithmic if all means are above 0.
    """

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._counts: list[int] = []
        self._size = 1

    def add(self, loss: float) -> None:
        """Add the mean loss of a log point, which is finite."""
        if self._counts and self._counts[-1] < self._size:
            self._sums[-1] += loss
            self._counts[-1] += 1
            return
        if len(self._sums) == CELLS:
            self._sums = [sum(self._sums[at : at + 2]) for at in range(0, CELLS, 2)]
            self._size *= 2
            self._counts = [self._size] * len(self._sums)
        self._sums.append(loss)
        self._counts.append(1)

    def __str__(self) -> str:
        means = [total / count for total, count in zip(self._sums, self._counts, strict=True)]
        if min(means, default=0.0) > 0:  # most losses fall by a factor, and then by another
            means = [math.log(mean) for mean in means]
        span = max(means, default=0.0) - min(means, default=0.0)
        if len(means) < 2 or not math.isfinite(span):
            return ""
        top = len(BLOCKS) - 1
        heights = ((mean - min(means)) / span if span else 0.5 for mean in means)
        return "".join(BLOCKS[round(height * top)] for height in heights)


class TqdmProgress(NullProgress):
    """A tqdm bar: it moves with the steps, and its numbers change at log points.

    Attributes:
        trend: of the loss, which a terminal shows if there is space for it beside the bar.
    """

    def __init__(self, plan: Plan, start: int, every_s: float = 0.1) -> None:
        self._bar = tqdm(total=plan.total_steps, initial=start, unit="step", dynamic_ncols=True)
        self._every_s = every_s
        self.trend = LossTrend()
        self._shown = time.monotonic()
        self._pending = 0

    def on_step(self, state: State, result: StepResult) -> Request | None:
        """Move the bar, at most once per `every_s`."""
        self._pending += 1
        now = time.monotonic()
        if now - self._shown >= self._every_s:
            self._shown = now
            self._move()
        return None

    def print_line(self, text: str) -> None:
        """Show a line."""
        super().print_line(text)
        with _ignore_closed_output():
            self._bar.write(escape_control_chars(text), file=sys.stderr)

    def on_rollback(self, state: State) -> None:
        """Show the step that the run went back to."""
        self._pending = 0
        self._bar.n = state.progress.step
        self._bar.refresh()

    def on_log(self, state: State, point: LogPoint) -> None:
        """Show a log point."""
        if self._bar.disable:  # by TQDM_DISABLE in the environment; it lacks attributes then
            return
        numbers = format_numbers(point)
        if (self._bar.ncols or 0) < WIDE:  # too narrow for the bar and all numbers
            numbers = {"loss": numbers["loss"]}
        self._bar.set_postfix(numbers, refresh=False)
        if (loss := mean_loss(point)) is not None:
            self.trend.add(loss)
        trend = str(self.trend)
        is_shown = trend and sys.stderr.isatty() and not self._bar.ascii
        if is_shown and self._count_free() >= LEAST_BAR + len(trend) + 1:
            self._bar.set_postfix(numbers | {"loss": f"{numbers['loss']} {trend}"}, refresh=False)

    def _count_free(self) -> int:
        """Return the columns that are left for the bar itself."""
        meter = {**self._bar.format_dict, "bar_format": "{l_bar}{r_bar}"}
        return (self._bar.ncols or 0) - len(self._bar.format_meter(**meter | {"ncols": None}))

    @contextmanager
    def show_transfer(self, name: str) -> Iterator[ShowSent]:
        """Show what is still sent when the run has ended, as a second bar."""
        text = f"Sending the rest to {name}, Ctrl-C ends the wait"
        with tqdm(desc=text, unit="B", unit_scale=True, dynamic_ncols=True) as bar:

            def show(done: int, total: int) -> None:
                bar.total, bar.n = total, done
                bar.refresh()

            yield show

    def close(self) -> None:
        """Leave the display as it is."""
        self._move()
        self._bar.close()

    def _move(self) -> None:
        self._bar.update(self._pending)
        self._pending = 0


def mean_loss(point: LogPoint) -> float | None:
    """Return the mean of the losses of a log point that are finite; None if none is."""
    losses = [loss for loss in point.loss if loss is not None and math.isfinite(loss)]
    return sum(losses) / len(losses) if losses else None


def format_numbers(point: LogPoint) -> dict[str, str]:
    """Return the numbers of a log point as text; the loss is a mean over its steps."""
    norms = [norm for norm in point.grad_norm if norm is not None]
    numbers = {
        "loss": mean_loss(point),
        "lr": point.lr[-1],
        "grad_norm": norms[-1] if norms else None,
    }
    speed = f"{point.items / point.seconds:,.0f}" if point.seconds else "not known"
    texts = {name: "not known" if n is None else f"{n:.4g}" for name, n in numbers.items()}
    return {**texts, "items/s": speed}


def open_progress(plan: Plan, start: int, *, is_shown: bool = True) -> NullProgress:
    """Return the display that the Plan chose, on stderr, from the step where the run begins."""
    if not is_shown:
        return NullProgress()
    if plan.logging_progress == "bar":
        return TqdmProgress(plan, start)
    return PlainProgress(plan) if plan.logging_progress == "plain" else NullProgress()
