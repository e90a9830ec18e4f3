"""Where features are standardized by statistics of all samples: `(X - X.mean(0)) / X.std(0)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from surestep.doctor.source.splits import argument_text
from surestep.doctor.source.trace import Event, Trace
from surestep.doctor.source.training import is_made_by, options_of, tensor_of
from surestep.doctor.source.values import (
    Call,
    Collection,
    Constant,
    Element,
    Operation,
    Value,
    last_name,
    walk,
)

_CENTERS = frozenset("mean nanmean min amin".split())
_SCALES = frozenset("std nanstd max amax ptp var".split())
_TRANSPOSES = frozenset("T mT transpose permute swapaxes moveaxis".split())
_MOST_PARTS = 50  # of an expression
_MOST_SOURCES = 300  # of samples


@dataclass(frozen=True, eq=False)
class Standardization:
    """Features from which a statistic is subtracted, and that are divided by another.

    Attributes:
        event: that computes it, or the first one with its result.
        value: the quotient.
        samples: that are standardized.
        statistic: that is subtracted, such as `X.mean(0)`.
        source: the samples that the statistic is of.
        text: the expression of the source.
    """

    event: Event
    value: Operation
    samples: Value
    statistic: Call
    source: Value
    text: str


def find_standardizations(trace: Trace) -> Iterator[Standardization]:
    """Yield the standardizations of features in a trace, in order.

    Statistics of each sample, of one sample or file after another, and of data that is transposed
    are left out.
    """
    seen: set[Operation] = set()
    repeated = {call for event, call in trace.calls if event.loops}
    for event in trace.events:
        if event.kind not in ("store", "call"):
            continue
        parts = list(walk(event.value, _MOST_PARTS))
        if any(last_name(part) in _TRANSPOSES for part in parts):
            continue
        for part in parts:
            if isinstance(part, Operation) and part.operator == "/" and part not in seen:
                seen.add(part)
                yield from _standardize(event, part, repeated)


def _standardize(
    event: Event, quotient: Operation, repeated: set[Call]
) -> Iterator[Standardization]:
    difference, scale = quotient.operands
    if not isinstance(difference, Operation) or difference.operator != "-":
        return
    samples, *others = difference.operands
    for statistic in options_of(others[0]) if others else ():
        source = _source_of(statistic, _CENTERS)
        scales = (_source_of(part, _SCALES) for part in walk(scale, _MOST_PARTS))
        if source is None or not isinstance(statistic, Call) or not any(map(bool, scales)):
            continue
        parts = walk(source, _MOST_SOURCES)
        if not any(isinstance(part, Element) or part in repeated for part in parts):
            text = _text_of(statistic)
            yield Standardization(event, quotient, samples, statistic, source, text)


def _source_of(statistic: Value, names: frozenset[str]) -> Value | None:
    """Return the samples that a value is a statistic of; None if it is not one of each feature."""
    if not isinstance(statistic, Call) or statistic.name not in names:
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


def _text_of(statistic: Call) -> str:
    """Return the expression of what a statistic is of, such as "X" in `X.mean(0)`."""
    function = statistic.node.func if isinstance(statistic.node, ast.Call) else None
    if statistic.is_method and isinstance(function, ast.Attribute):
        return ast.unparse(function.value)
    return argument_text(statistic)
