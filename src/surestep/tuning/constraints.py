"""`--where "peak_memory < 8GB"`: what a trial has to satisfy so that it can be the best."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from surestep.base.errors import ConfigError
from surestep.config.byte_size import parse_bytes
from surestep.config.duration import parse_duration, parse_number

_TEXT = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=|<|>)\s*([^\s<>=]+(?:\s+\w+)?)\s*")
_ALIASES = {"memory": "peak_memory"}
_HOW = "Write a name, a comparison and a number, such as peak_memory < 8GB or val/accuracy >= 0.9."
_UNKNOWN = 1.0  # how much a trial without the value violates a constraint


@dataclass(frozen=True)
class Constraint:
    """A comparison of what a trial has measured with a limit.

    Attributes:
        text: as it is recorded; Optuna's name of the constraint.
        name: of a metric, or "seconds", "parameters" or "peak_memory".
        comparison: <, <=, > or >=.
        limit: in bytes for peak_memory, in seconds for seconds.
    """

    text: str
    name: str
    comparison: str
    limit: float

    def measure_violation(self, measured: Mapping[str, float]) -> float:
        """Return by how much a trial violates it: above 0 if it does, as Optuna counts."""
        value = measured.get(self.name, math.nan)
        if math.isnan(value):
            return _UNKNOWN
        excess = value - self.limit if self.comparison[0] == "<" else self.limit - value
        if excess == 0 and len(self.comparison) == 1:  # the limit itself is not below it
            return math.ulp(self.limit)
        return excess


def parse_constraint(text: str) -> Constraint:
    """Parse a constraint.

    Raises:
        ConfigError: it has no name, comparison or number.
    """
    match = _TEXT.fullmatch(text)
    limit = None if match is None else _parse_limit(match[1], match[3])
    if match is None or limit is None:
        raise ConfigError(f"--where {text!r} is not a comparison with a number. {_HOW}")
    name = _ALIASES.get(match[1], match[1])
    amount = " ".join(match[3].split())
    return Constraint(f"{name} {match[2]} {amount}", name, match[2], limit)


def _parse_limit(name: str, text: str) -> float | None:
    """Return a limit as a number; None if it is none. The unit depends on the name."""
    sign = -1.0 if text.startswith("-") else 1.0
    number = parse_number(text.removeprefix("-"))
    if _ALIASES.get(name, name) == "peak_memory":
        return number if number is not None else parse_bytes(text)
    if name == "seconds" and number is None:
        try:
            return parse_duration(text, ("minutes",)).amount * 60
        except ValueError:
            return None
    return None if number is None else sign * number


def describe_violations(constraints: Iterable[Constraint], measured: Mapping[str, float]) -> str:
    """Return which constraints a trial violates, such as "violates peak_memory < 8GB"; or ""."""
    broken = [one.text for one in constraints if one.measure_violation(measured) > 0]
    return f"violates {' and '.join(broken)}" if broken else ""
