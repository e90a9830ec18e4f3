"""The values that a search may give an option, and how they are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from surestep.base.errors import suggest_names
from surestep.config.duration import format_number, parse_number
from surestep.config.spellings import plain_value
from surestep.record.io import dumps

if TYPE_CHECKING:  # optuna is optional
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

Kind = Literal["log", "uniform", "int", "logint", "choice"]
RANGES: tuple[Kind, ...] = ("log", "uniform", "int", "logint")
HOW = (
    "Write log(1e-5, 1e-2), uniform(0, 0.5), int(16, 256), int(16, 256, step=16), "
    "logint(16, 1024), or a list of choices."
)
# What other libraries call them.
_OTHER_NAMES = {"loguniform": "log", "log_uniform": "log", "float": "uniform", "randint": "int"}
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_SCALARS = (str, int, float, bool, type(None))  # what Optuna stores as a choice


class _Argument(NamedTuple):
    name: str  # "" by position
    number: float


class Condition(NamedTuple):
    """What a trial has to choose so that it has a dimension.

    Attributes:
        name: of another dimension.
        value: a choice of that.
        label: the choice as tables show it.
    """

    name: str
    value: Any
    label: str


@dataclass(frozen=True)
class Dimension:
    """The values of one option.

    Attributes:
        name: full name of the option, or "task.NAME" for a parameter of the recipe.
        kind: "log" and "logint" are uniform in the logarithm.
        low: smallest value of a range.
        high: largest value of a range; it is included.
        step: distance of the values of "int" and "uniform"; None is any value in between.
        choices: the values of "choice".
        conditions: a trial has the dimension if it satisfies all of them.
        shares_name: other conditions give the same option other values.
    """

    name: str
    kind: Kind
    low: float = 0
    high: float = 0
    step: float | None = None
    choices: tuple[Any, ...] = ()
    conditions: tuple[Condition, ...] = ()
    shares_name: bool = False

    @property
    def key(self) -> str:
        """The name of its parameter in Optuna, which has a single range for each."""
        needs = " and ".join(f"{one.name}={one.label}" for one in self.conditions)
        return f"{self.name} if {needs}" if self.shares_name else self.name

    @property
    def path(self) -> str:
        """The name as it is written in a file, with its conditions."""
        return "".join(f"if.{one.name}.{one.label}." for one in self.conditions) + self.name

    def describe_conditions(self) -> str:
        """Return what a trial has to choose, such as "optim.name is sgd"; "" if nothing."""
        return " and ".join(f"{one.name} is {one.label}" for one in self.conditions)

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Whether a trial has this dimension, by the values that it has chosen."""
        return all(one.name in values and values[one.name] == one.value for one in self.conditions)

    @property
    def is_whole(self) -> bool:
        """Whether the values are integers."""
        return self.kind in ("int", "logint")

    def as_json(self) -> str | list[Any]:
        """Return it as it is written in a file."""
        if self.kind == "choice":
            return [list(value) if isinstance(value, tuple) else value for value in self.choices]
        step = "" if self.step is None else f", step={self.step!r}"
        return f"{self.kind}({self.low!r}, {self.high!r}{step})"

    def distribution(self) -> BaseDistribution:
        """Return it as Optuna's distribution."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        if self.kind == "choice":
            return CategoricalDistribution([self.stored(value) for value in self.choices])
        if self.kind == "uniform":
            return FloatDistribution(self.low, self.high, step=self.step)
        if self.kind == "log":
            return FloatDistribution(self.low, self.high, log=True)
        low, high = int(self.low), int(self.high)
        return IntDistribution(low, high, log=self.kind == "logint", step=int(self.step or 1))

    def suggest(self, trial: Trial) -> Any:
        """Let the sampler of a trial choose a value."""
        low, high, step = self.low, self.high, self.step
        stored: Any
        if self.kind == "choice":
            choices = [self.stored(value) for value in self.choices]
            stored = trial.suggest_categorical(self.key, choices)
        elif self.is_whole:
            ends, log = (int(low), int(high)), self.kind == "logint"
            stored = trial.suggest_int(self.key, *ends, step=int(step or 1), log=log)
        else:
            stored = trial.suggest_float(self.key, low, high, step=step, log=self.kind == "log")
        return self.value_of(stored)

    def stored(self, value: Any) -> Any:
        """Return a value as Optuna stores it: a list is text."""
        return value if isinstance(value, _SCALARS) else json.dumps(value)

    def value_of(self, stored: Any) -> Any:
        """Return the value that Optuna stores as `stored`."""
        if self.kind != "choice":
            return stored
        return next((value for value in self.choices if self.stored(value) == stored), stored)

    def fit(self, value: Any) -> Any:
        """Return a value of the dimension which equals another one.

        Raises:
            ValueError: there is none.
        """
        plain = plain_value(value)
        for choice in self.choices:
            same_kind = isinstance(choice, bool) == isinstance(plain, bool)
            if same_kind and self.stored(choice) == self.stored(plain):  # a tuple is as a list
                return choice
        if not self.choices and isinstance(plain, int | float) and not isinstance(plain, bool):
            step = self.step or (1 if self.is_whole else 0)
            near = self.low + round((plain - self.low) / step) * step if step else plain
            if self.low <= plain <= self.high and math.isclose(near, plain, abs_tol=1e-12):
                return self._rounded(near)
        raise ValueError(f"{self.name}={value!r} is outside of {self.as_json()}")

    def probes(self) -> list[Any]:
        """Return values to try: each choice, or both ends of a range and a value between them."""
        if self.kind == "choice":
            return list(self.choices)
        return list(dict.fromkeys((self.value_at(0.0), self.value_at(0.37), self.value_at(1.0))))

    def value_at(self, share: float) -> Any:
        """Return the value at a share, from 0 to 1, of the range or the choices.

        All integers, steps and choices have equal shares, in the logarithm for "logint".
        """
        if self.kind == "choice":
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        if share in (0.0, 1.0):  # without rounding errors
            return self._rounded(self.high if share else self.low)
        half = 0.5 * (self.step or (1 if self.is_whole else 0))
        low, high = self.low - half, self.high + half
        if self.kind in ("log", "logint"):
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        if self.is_whole or self.step is not None:
            step = self.step or 1
            value = self.low + round((value - self.low) / step) * step
        return self._rounded(value)

    @property
    def n_values(self) -> int | None:
        """Number of values; None if it is continuous."""
        if self.kind == "choice":
            return len(self.choices)
        if self.is_whole or self.step is not None:
            return round((self.high - self.low) / (self.step or 1)) + 1
        return None

    def nth(self, index: int) -> Any:
        """Return a value by its index; not of a continuous dimension."""
        if self.kind == "choice":
            return self.choices[index]
        return self._rounded(self.low + index * (self.step or 1))

    def _rounded(self, value: float) -> int | float:
        """Return a value in the range; 0.1 + 2 * 0.1 is 0.3."""
        value = min(max(value, self.low), self.high)
        if self.is_whole:
            return int(value)
        return float(value) if self.step is None else round(float(value), 12)


def label_choices(dimension: Dimension) -> list[str]:
    """Return the labels of the choices: text is in quotes if it reads like another choice."""
    labels = [format_exact(choice) for choice in dimension.choices]
    if len(set(labels)) == len(labels):
        return labels
    return [dumps(c) if isinstance(c, str) else format_exact(c) for c in dimension.choices]


def format_exact(value: Any) -> str:
    """Format a value with all its digits: as JSON, but text without quotes, and 8.0 as 8."""
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value) if isinstance(value, str) else dumps(value)


def parse_dimension(name: str, value: Any) -> Dimension:
    """Parse the values of one option: text such as "log(1e-5, 1e-2)", or a list of choices.

    Raises:
        ValueError: it is something else, or empty.
    """
    value = plain_value(value)
    if isinstance(value, (list, tuple)):
        return _parse_choices(name, value)
    if not isinstance(value, _SCALARS):
        raise ValueError(f"{value!r} is not a range or a list. {HOW}")
    if not isinstance(value, str):
        raise ValueError(
            f"{value!r} is a single value. To set it in all trials, leave it out of the space and "
            f"set the option itself. {HOW}"
        )
    match = _CALL.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not a range. {HOW}")
    kind = match[1].lower()
    if kind not in RANGES:
        known = _OTHER_NAMES.get(kind)
        meant = f"Use {known}." if known else suggest_names(kind, RANGES)
        raise ValueError(f"there is no range {match[1]!r}. {meant} {HOW}")
    return _parse_range(name, kind, value, _parse_arguments(value, match[2]))


def _parse_choices(name: str, values: Sequence[Any]) -> Dimension:
    """Check a list of choices.

    Raises:
        ValueError: it is too short, has a value twice, or a value that cannot be recorded.
    """
    choices = tuple(plain_value(value) for value in values)
    shown = list(choices)
    if not choices:
        raise ValueError("the list of choices is empty. Write at least two values in it.")
    if len(choices) == 1:
        raise ValueError(f"{shown!r} has a single choice. Set the option itself instead.")
    made = Dimension(name, "choice", choices=choices)
    for index, choice in enumerate(choices):
        if not _is_plain(choice):
            raise ValueError(
                f"{choice!r} cannot be a choice. Use text, finite numbers, true, false, or lists "
                "of these."
            )
        for earlier in choices[:index]:
            if earlier == choice or made.stored(earlier) == made.stored(choice):
                raise ValueError(f"{earlier!r} and {choice!r} are equal choices. Leave one out.")
    return made


def _is_plain(value: Any) -> bool:
    """Whether JSON and Optuna can record a value."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, _SCALARS) and not (
        isinstance(value, float) and not math.isfinite(value)
    )


def _parse_arguments(text: str, inner: str) -> list[_Argument]:
    """Return the numbers between the parentheses."""
    found = []
    for word in inner.split(","):
        name, equals, number = word.rpartition("=")
        sign = -1.0 if number.strip().startswith("-") else 1.0
        parsed = parse_number(number.strip().removeprefix("-").removeprefix("+"))
        if parsed is None or (equals and name.strip() != "step"):
            raise ValueError(f"{text!r}: {word.strip()!r} is not a number. {HOW}")
        found.append(_Argument(name.strip(), sign * parsed))
    return found


def _parse_range(name: str, kind: Any, text: str, arguments: list[_Argument]) -> Dimension:
    """Check the numbers of a range.

    Raises:
        ValueError: they do not make a range.
    """
    numbers = [argument.number for argument in arguments if not argument.name]
    steps = [argument.number for argument in arguments if argument.name]
    if len(numbers) != 2 or len(steps) > 1 or arguments[-1].name != ("step" if steps else ""):
        raise ValueError(f"{text!r}: it takes a lowest and a highest value. {HOW}")
    low, high = numbers
    step = steps[0] if steps else None
    start = 1e-6 if kind == "log" else 1
    if kind in ("log", "logint") and min(numbers) <= 0:
        raise ValueError(
            f"{text!r}: the logarithm of {min(numbers):g} is not defined. Start above 0, such as "
            f"{kind}({start:g}, {max(*numbers, 10 * start):g})."
        )
    if low >= high:
        raise ValueError(
            f"{text!r} is empty: {format_number(low)} is not below {format_number(high)}."
            + (
                f" Write {kind}({format_number(high)}, {format_number(low)})."
                if low > high
                else " Set the option itself."
            )
        )
    if step is not None and kind in ("log", "logint"):
        raise ValueError(f"{text!r}: a logarithmic range has no step. Leave step out.")
    if kind in ("int", "logint"):
        for number in (*numbers, *steps):
            if not number.is_integer() or abs(number) >= 2**53:
                raise ValueError(f"{text!r}: {format_number(number)} is not an integer. {HOW}")
    if step is not None:
        _check_step(text, kind, low, high, step)
    if kind in ("int", "logint"):
        low, high, step = int(low), int(high), None if step is None else int(step)
    return Dimension(name, kind, low, high, step)


def _check_step(text: str, kind: str, low: float, high: float, step: float) -> None:
    if step <= 0:
        raise ValueError(f"{text!r}: step={format_number(step)} is not above 0.")
    if step > high - low:
        raise ValueError(f"{text!r}: step={format_number(step)} is longer than the range.")
    count = (high - low) / step
    if abs(count - round(count)) > 1e-9 * max(1, count):
        last = format_number(round(low + math.floor(count + 1e-9) * step, 12))
        first, by = format_number(low), format_number(step)
        raise ValueError(
            f"{text!r}: steps of {by} from {first} do not reach {format_number(high)}. Write "
            f"{kind}({first}, {last}, step={by})."
        )
