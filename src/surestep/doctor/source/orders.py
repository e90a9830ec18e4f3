"""The orders of samples that a script draws: by a shuffle in place, or by an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.training import base_of, is_made_by, options_of
from surestep.doctor.source.values import Call, Collection, Constant, Item, Value

SPLIT = "sklearn.model_selection.train_test_split"
_SHUFFLES = ("numpy.random.shuffle", "random.shuffle")
_ORDERS = ("torch.randperm", "numpy.random.permutation", "sklearn.utils.shuffle", SPLIT)
_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_CONVERSIONS = frozenset(
    "tensor as_tensor from_numpy array asarray stack to_numpy reset_index astype float long int to "
    "copy clone numpy tolist view reshape squeeze unsqueeze ravel flatten double "
    "contiguous values FloatTensor LongTensor Tensor".split()
)


class SampleOrder(NamedTuple):
    """The order of samples that a call drew.

    Attributes:
        call: that drew it.
        before: the samples in the order that they had before; None if that is not known.
        event: the call, if it shuffled them in place.
    """

    call: Call
    before: Value | None = None
    event: Event | None = None


def has_generator(call: Call) -> bool:
    """Return whether a method of a generator that the script made is called."""
    return is_made_by(call.receiver, *_GENERATORS)


def shuffled_by(call: Call | None) -> Value | None:
    """Return what a call shuffles in place."""
    if call is None or not call.args:
        return None
    is_shuffle = call.path in _SHUFFLES or (call.name == "shuffle" and has_generator(call))
    return call.args[0] if is_shuffle else None


def draws_order(value: Value) -> TypeGuard[Call]:
    """Return whether a value is a call that brings what it is given into a new order each time."""
    if not isinstance(value, Call) or value.has_unknown_arguments:
        return False
    if value.keywords.keys() & {"random_state", "generator", "shuffle"}:
        return False
    match value:
        case Call(path=".sample", keywords={"frac": Constant(1)}):
            return True
    return value.path in _ORDERS or (value.name == "permutation" and has_generator(value))


def _draws_alone(value: Value) -> TypeGuard[Call]:
    """Return whether a call brings one array into a new order, and no other into the same."""
    return draws_order(value) and len(value.args) < 2


@once_per_trace
def _find_shuffles(trace: Trace) -> dict[Value, SampleOrder]:
    """Return what a trace certainly shuffles in place, by the first call that does."""
    return {
        shuffled: SampleOrder(call, shuffled, event)
        for event, call in reversed(trace.calls)
        if (shuffled := shuffled_by(call)) is not None and not event.branches
    }


def find_order(trace: Trace, value: Value) -> SampleOrder | None:
    """Return the order of the samples of a value, if a call drew it."""
    shuffles = _find_shuffles(trace)
    for part in _trace_back(value):
        if part in shuffles:
            return shuffles[part]
        if isinstance(part, Item):
            if drawn := next(filter(_draws_alone, _trace_back(part.index)), None):
                return SampleOrder(drawn, part.base)
            if _draws_alone(part.base):
                return SampleOrder(part.base)
        elif _draws_alone(part):
            return SampleOrder(part, part.argument(0, ""))
    return None


def find_root(value: Value | None) -> Value | None:
    """Return the samples of which a value is a slice, or a copy of another type or shape."""
    return next(reversed([*_trace_back(value)]), None)


def _trace_back(value: Value | None) -> Iterator[Value]:
    """Yield a value, and those of which it is a slice or a copy, the first last."""
    while value is not None:
        options = options_of(value)
        value = options[0] if len(options) == 1 else value
        yield value
        is_columns = isinstance(value, Item) and isinstance(value.index, Collection)
        value = None if is_columns else base_of(value, _CONVERSIONS)
