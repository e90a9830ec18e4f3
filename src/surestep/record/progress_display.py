"""What is shown while training: a bar, plain lines, or nothing. All of it goes to stderr."""

import errno
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from tqdm.auto import tqdm

from surestep.base.text import escape_control_chars
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback, Request
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.train_step import StepResult

WIDE = 110  # columns that a bar with all its figures takes
logger = logging.getLogger("surestep")


@contextmanager
def _ignore_hangup() -> Iterator[None]:
    """Lose what is printed to a terminal that was closed; SIGHUP stops the run, not an error."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class ProgressDisplay(Protocol):
    """Somewhere to show how far a run is."""

    def print_line(self, text: str) -> None:
        """Show a line."""
        ...

    def log(self, point: LogPoint) -> None:
        """Show a log point."""
        ...

    def rewind(self, step: int) -> None:
        """Show that the run went back to a step."""
        ...

    def close(self) -> None:
        """Leave the display as it is."""
        ...


class NullProgress:
    """Show nothing; what is said goes to the `logging` module alone."""

    def rewind(self, step: int) -> None:
        """Do nothing."""

    def print_line(self, text: str) -> None:
        """Log a line."""
        logger.info(escape_control_chars(text))

    def log(self, point: LogPoint) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


EVERY_S = 2.0  # between plain lines, where logging.every was not set


class PlainProgress(NullProgress):
    """Print a line now and then, where there is no terminal."""

    def __init__(self, plan: Plan, every_s: float | None = None, out: TextIO | None = None) -> None:
        self.total = plan.total_steps
        if every_s is None:  # every log point of a period that the user set
            every_s = 0.0 if plan.reason("logging.every").startswith("set ") else EVERY_S
        self.every_s = every_s
        self._last = -self.every_s
        self._out = out

    def print_line(self, text: str) -> None:
        """Print a line."""
        logger.info(escape_control_chars(text))
        with _ignore_hangup():
            print(escape_control_chars(text), file=self._out or sys.stderr, flush=True)

    def log(self, point: LogPoint) -> None:
        """Print a line if the last one is old enough, or this is the end."""
        now = time.monotonic()
        step = point.first_step + len(point.loss) - 1
        if now - self._last >= self.every_s or step == self.total:
            self._last = now
            shown = "  ".join(f"{k} {v}" for k, v in figures(point).items())
            where = f"step {step}/{self.total}  epoch {point.epoch + 1}"
            if step > self.total:  # by train_step(), after the end
                where = f"step {step}, after the {self.total} of the run"
            self.print_line(f"{where}  {shown}")


class TqdmProgress(Callback):
    """A tqdm bar; it moves with the steps, and its figures at log points, without reading."""

    def __init__(
        self, plan: Plan, start: int, every_s: float = 0.1, out: TextIO | None = None
    ) -> None:
        self._out = out or sys.stderr
        self._bar = tqdm(
            total=plan.total_steps, initial=start, unit="step", dynamic_ncols=True, file=self._out
        )
        self._every_s = every_s
        self._shown = time.monotonic()
        self._waiting = 0

    def on_step(self, state: State, result: StepResult) -> Request | None:
        """Move the bar, not more often than an eye can see."""
        self._waiting += 1
        now = time.monotonic()
        if now - self._shown >= self._every_s:
            self._shown = now
            self._move()
        return None

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        logger.info(escape_control_chars(text))
        with _ignore_hangup():
            self._bar.write(escape_control_chars(text), file=self._out)

    def rewind(self, step: int) -> None:
        """Move the bar back."""
        self._waiting = 0
        self._bar.n = step
        self._bar.refresh()

    def log(self, point: LogPoint) -> None:
        """Show loss, rate, norm and speed."""
        shown = dict(figures(point))
        if (self._bar.ncols or 0) < WIDE:  # leave room for the bar itself
            shown = {"loss": shown["loss"]}
        self._bar.set_postfix(shown, refresh=False)

    def close(self) -> None:
        """Leave the bar where it is."""
        self._move()
        self._bar.close()

    def _move(self) -> None:
        self._bar.update(self._waiting)
        self._waiting = 0


def figures(point: LogPoint) -> Mapping[str, str]:
    """Return the figures of a log point as text: means where a mean says something."""
    losses = [loss for loss in point.loss if loss is not None and math.isfinite(loss)]
    norms = [norm for norm in point.grad_norm if norm is not None]
    shown: dict[str, Any] = {
        "loss": sum(losses) / len(losses) if losses else None,
        "lr": point.lr[-1],
        "grad_norm": norms[-1] if norms else None,
    }
    text = {name: "not known" if value is None else f"{value:.4g}" for name, value in shown.items()}
    speed = f"{point.items / point.seconds:,.0f}" if point.seconds else "not known"
    return {**text, "items/s": speed}


def open_progress(
    plan: Plan, start: int, out: TextIO | None = None
) -> NullProgress | PlainProgress | TqdmProgress:
    """Return the display that the Plan chose.

    Args:
        plan: what was decided.
        start: the step the run goes on from.
        out: where it is shown; None is stderr.
    """
    if plan.logging_progress == "bar":
        return TqdmProgress(plan, start, out=out)
    return PlainProgress(plan, out=out) if plan.logging_progress == "plain" else NullProgress()
