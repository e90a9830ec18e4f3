"""Durations as text with a unit: "3 epochs", "500 steps", "1e9 items", "10 minutes"."""

import math
import re
import sys
from dataclasses import dataclass
from typing import Literal, get_args

from surestep.base.errors import ConfigError

Unit = Literal["epochs", "steps", "items", "minutes"]


def format_number(amount: float) -> str:
    """Format a number exactly, so that it reads back the same; integers without a point."""
    return str(int(amount)) if amount.is_integer() else repr(amount)


_NUMBER = re.compile(r"([0-9._]+(?:e[+-]?[0-9]+)?)\s*([km]?)", re.IGNORECASE)
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6}


def parse_percent(text: str) -> float | None:
    """Parse the number before the "%" of "10%"; return None if it is not a finite number."""
    number = text.strip().removesuffix("%")
    return None if number.strip()[-1:].isalpha() else parse_number(number)


def parse_number(text: str) -> float | None:
    """Parse "1_000", "1e4", "1.5k" or "2M"; return None if it is not a finite number."""
    match = _NUMBER.fullmatch(text.strip())
    try:
        number, scale = (float(match[1]), _SCALES[match[2].lower()]) if match else (math.inf, 1.0)
    except ValueError:
        return None
    number = number if scale == 1 else round(number * scale, 12)  # 2.01k is 2010
    return number if math.isfinite(number) else None


UNITS: tuple[Unit, ...] = get_args(Unit)
_TEXT = re.compile(r"\s*(?:every\s+)?(.*?)\s*([a-z]+)\s*", re.IGNORECASE)
_CLOCK = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1 / 60),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 1.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 60.0),
    **dict.fromkeys(("day", "days"), 1440.0),
}
_CLOCK_UNITS = ("seconds", "minutes", "hours", "days")
_SPELLINGS: dict[str, tuple[Unit, float]] = {
    **{word: (unit, 1.0) for unit in UNITS for word in (unit, unit[:-1])},
    **{word: ("minutes", scale) for word, scale in _CLOCK.items()},
}


@dataclass(frozen=True)
class Duration:
    """A positive amount of one unit."""

    amount: float
    unit: Unit

    def __str__(self) -> str:
        unit = self.unit[:-1] if self.amount == 1 else self.unit
        return f"{format_number(self.amount)} {unit}"

    def in_steps(self, steps_per_epoch: int | None) -> int:
        """Return the duration in whole optimizer steps, at least one.

        Raises:
            ConfigError: how many steps an epoch has is not known.
            ValueError: the unit is items or minutes, which no number of steps is known for.
        """
        return max(1, round(self.steps(steps_per_epoch)))

    def steps(self, steps_per_epoch: int | None) -> float:
        """Return the duration in optimizer steps; it may be a fraction.

        Raises:
            ConfigError: how many steps an epoch has is not known.
            ValueError: the unit is items or minutes, which no number of steps is known for.
        """
        if self.unit == "steps":
            return self.amount
        if self.unit != "epochs":
            raise ValueError(f"{str(self)!r} has no fixed number of steps")
        if steps_per_epoch is None:
            raise ConfigError(
                f"{str(self)!r} has no length in steps: the training data is a stream that does "
                "not have a length. Set it in steps, such as '1000 steps'."
            )
        return self.amount * steps_per_epoch


def parse_duration(text: str, units: tuple[Unit, ...] = UNITS) -> Duration:
    """Parse "3 epochs", "1k steps", "1_000 steps", "epoch" or "30s".

    Raises:
        ValueError: it is not a positive amount with one of `units`.
    """
    names = [name for unit in units for name in (_CLOCK_UNITS if unit == "minutes" else (unit,))]
    example = "hours" if units == ("minutes",) else units[0]
    wanted = f"must be an amount and a unit ({', '.join(names)}), such as '2 {example}'"
    match = _TEXT.fullmatch(text)
    if match is None or (not match[1] and match[2].lower().endswith("s")):  # only "steps"
        raise ValueError(wanted)
    spelled = match[2].lower()
    if spelled == "m" and units == ("minutes",):  # elsewhere it could be a million
        spelled = "min"
    unit, scale = _SPELLINGS.get(spelled, (None, 0.0))
    amount = (parse_number(match[1] or "1") or 0.0) * scale
    if unit not in units or not 0 < amount < math.inf:
        raise ValueError(wanted)
    return Duration(amount, unit)


def count_periods(count: float, period: float) -> int:
    """Return how many full periods `count` contains.

    A rounding error in the last bit is ignored, so three thirds of an epoch are one epoch.
    """
    return int(count / period + 1e-9)


class PeriodicTrigger:
    """Decides at which steps a periodic action is due.

    The action is due at each step that crosses a multiple of the period, so a resumed run acts at
    the same steps. Only minutes are counted from the start of the process.

    Args:
        duration: the period; None means never.
        steps_per_epoch: optimizer steps per epoch. If it is None, epochs are counted when they end.
        items: items that the run has seen so far.
        seconds: the current clock time.
        least_s: seconds from one action, or the start, to the next at least.
    """

    def __init__(
        self,
        duration: Duration | None,
        steps_per_epoch: int | None,
        *,
        items: float = 0,
        seconds: float = 0,
        least_s: float = 0,
    ) -> None:
        duration = duration or Duration(math.inf, "steps")
        self.unit = duration.unit
        self._by_ends = duration.unit == "epochs" and steps_per_epoch is None
        scale = {"epochs": steps_per_epoch, "minutes": 60}.get(duration.unit, 1)
        self.period = duration.amount * (scale or 1)
        self._least_s = least_s
        self.start(items, seconds)

    def start(self, items: float, seconds: float) -> None:
        """Count items and time from here."""
        self._items, self._seconds = items, seconds

    def is_due(self, step: int, items: float, seconds: float, ended: int = 0) -> bool:
        """Return whether a period ended with this step; if so, begin the next one.

        `ended` counts the epochs that are over where this step ended one; 0 where it did not.
        """
        passed_s = seconds - self._seconds
        is_due = self._ends_period(step, items, passed_s, ended) and passed_s >= self._least_s
        if is_due:
            self._seconds = seconds
        return is_due

    def _ends_period(self, step: int, items: float, passed_s: float, ended: int) -> bool:
        if self._by_ends:
            return ended > 0 and self._periods(ended) > self._periods(ended - 1)
        if self.unit == "minutes":
            return passed_s >= self.period
        if self.unit == "items":
            before, self._items = self._items, items
            return self._periods(items) > self._periods(before)
        return self._periods(step) > self._periods(step - 1)

    def count_due(self, steps: int) -> int | None:
        """Return how many of the first steps are due; None if it depends on more than the steps."""
        is_by_steps = self.unit in ("epochs", "steps") and not self._by_ends
        return self._periods(steps) if is_by_steps else None

    def next_check_step(self, step: int) -> int:
        """Return the first step after `step` that may be due, so that others need not ask."""
        if self.unit in ("minutes", "items") or self._by_ends:
            return step + 1
        if self.period == math.inf:
            return sys.maxsize
        return max(step + 1, math.ceil((self._periods(step) + 1) * self.period - 1e-6))

    def _periods(self, count: float) -> int:
        return count_periods(count, self.period)
