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


class TqdmProgress(NullProgress):
    """A tqdm bar: it moves with the steps, and its numbers change at log points."""

    def __init__(self, plan: Plan, start: int, every_s: float = 0.1) -> None:
        self._bar = tqdm(total=plan.total_steps, initial=start, unit="step", dynamic_ncols=True)
        self._every_s = every_s
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
        numbers = format_numbers(point)
        if (self._bar.ncols or 0) < WIDE:  # too narrow for the bar and all numbers
            numbers = {"loss": numbers["loss"]}
        self._bar.set_postfix(numbers, refresh=False)

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


def format_numbers(point: LogPoint) -> dict[str, str]:
    """Return the numbers of a log point as text; the loss is a mean over its steps."""
    losses = [loss for loss in point.loss if loss is not None and math.isfinite(loss)]
    norms = [norm for norm in point.grad_norm if norm is not None]
    numbers = {
        "loss": sum(losses) / len(losses) if losses else None,
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
