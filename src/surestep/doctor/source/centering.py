"""Where samples are centered by a statistic of all of them: `(X - X.mean(0)) / X.std(0)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from surestep.doctor.source.trace import Event, Trace
from surestep.doctor.source.training import is_made_by, options_of, tensor_of
from surestep.doctor.source.values import (
    Call,
    Collection,
    Constant,
    Operation,
    Value,
    last_name,
    walk,
)

_STATISTICS = frozenset("mean nanmean median min amin".split())
_MOST_PARTS = 50  # of an expression


@dataclass(frozen=True, eq=False)
class Centering:
    """A difference of samples and a statistic.

    Attributes:
        event: that computes it, or the first one with its result.
        value: the difference.
        samples: that are centered.
        statistic: of each feature, such as `X.mean(0)`.
        source: the samples that the statistic is of.
    """

    event: Event
    value: Operation
    samples: Value
    statistic: Call
    source: Value


def find_centerings(trace: Trace) -> Iterator[Centering]:
    """Yield the centerings of a trace, in order."""
    seen: set[Operation] = set()
    for event in trace.events:
        if event.kind not in ("store", "call"):
            continue
        for part in walk(event.value, _MOST_PARTS):
            if not isinstance(part, Operation) or part.operator != "-" or part in seen:
                continue
            seen.add(part)
            if len(part.operands) == 2:
                samples, statistic = part.operands
                for option in options_of(statistic):
                    source = _source_of(option)
                    if source is not None and isinstance(option, Call):
                        yield Centering(event, part, samples, option, source)


def _source_of(statistic: Value) -> Value | None:
    """Return the samples that a value is a statistic of; None if it is not one of each feature."""
    if not isinstance(statistic, Call) or statistic.name not in _STATISTICS:
        return None
    first = 0 if statistic.is_method else 1
    axis = statistic.argument(first, "axis") or statistic.argument(first, "dim")
    source = tensor_of(statistic)
    if axis is None:
        return source if source is not None and _is_table(source) else None
    axes = axis.elements if isinstance(axis, Collection) else [axis]
    is_over_samples = any(isinstance(entry, Constant) and entry.value == 0 for entry in axes)
    return source if is_over_samples else None


def _is_table(source: Value) -> bool:
    """Return whether a value is a table of pandas, whose statistics are of its columns."""
    parts = list(walk(source, _MOST_PARTS))
    is_array = any(last_name(part) in ("values", "to_numpy") for part in parts)
    return not is_array and any(is_made_by(part, "pandas.") for part in parts)
