"""The order of samples: which calls shuffle them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from surestep.doctor.source.trace import Event, Trace
from surestep.doctor.source.training import is_made_by, options_of
from surestep.doctor.source.values import Attribute, Call, Constant, Item, Operation, Value, walk

_SHUFFLES = ("numpy.random.shuffle", "random.shuffle")
_ORDERS = ("torch.randperm", "numpy.random.permutation")
_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_CONVERSIONS = frozenset(
    "tensor as_tensor from_numpy array asarray stack to_numpy reset_index astype float long int to "
    "copy clone numpy tolist view reshape squeeze unsqueeze ravel flatten double "
    "contiguous FloatTensor LongTensor Tensor".split()
)
_FILES = ("numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "torch.load")
_SIZES = re.compile(r"^(len|size|zeros|ones|full|empty|eye|arange|rand|new_)|_like$")
_MIXES = frozenset(  # samples, unless over another dimension than theirs, the first
    "max min amax amin argmax argmin mean sum prod norm std var median mode quantile sort argsort "
    "topk unique cumsum cumprod flip roll logsumexp softmax nanmean nansum".split()
)
_SEEDS = re.compile(r"seed|set_state|set_rng_state|setstate|RandomState|default_rng|Random$")


@dataclass(frozen=True)
class DrawnOrder:
    """The order of samples that a call drew.

    Attributes:
        call: that drew it.
        before: the samples in the order that they had before; None if that is not known.
        event: the call, if it shuffled them in place.
    """

    call: Call
    before: Value | None = None
    event: Event | None = None


def shuffled_by(event: Event) -> Value | None:
    """Return what a call shuffles in place."""
    call = event.call
    if call is None or not call.args:
        return None
    is_generator = call.name == "shuffle" and is_made_by(call.receiver, *_GENERATORS)
    return call.args[0] if call.path in _SHUFFLES or is_generator else None


def find_order(value: Value, shuffles: list[Event]) -> DrawnOrder | None:
    """Return the order of the samples of a value, if a call drew it."""
    for _ in range(10):
        for event in shuffles:
            if shuffled_by(event) is value and event.call is not None and not event.branches:
                return DrawnOrder(event.call, value, event)
        options = options_of(value)
        if len(options) != 1:
            return None
        value = options[0]
        if isinstance(value, Item):
            if (drawn := _find_drawn(value.index)) is not None:
                return DrawnOrder(drawn, value.base)
            if isinstance(value.base, Call) and _draws_order(value.base):
                return DrawnOrder(value.base)
        elif isinstance(value, Call) and _draws_order(value):
            return DrawnOrder(value, value.argument(0, ""))
        inner = _unwrap(value)
        if inner is None:
            return None
        value = inner
    return None


def _unwrap(value: Value) -> Value | None:
    """Undo the last step of what `find_root` undoes; None if there is none."""
    match value:
        case Item(base=base, index=Operation(operator=":")):
            return base
        case Attribute(base=base, name="values"):
            return base
        case Call() if value.name in _CONVERSIONS:
            return value.receiver if value.is_method else value.argument(0, "")
    return None


def _find_drawn(index: Value) -> Call | None:
    """Return the call that drew an index, or of which it is a slice."""
    found: Value | None = index
    while found is not None:
        if isinstance(found, Call) and _draws_order(found):
            return found
        found = _unwrap(found)
    return None


def keep_order(trace: Trace, labels: Value, order: DrawnOrder) -> bool:
    """Return whether labels certainly have the order in which their inputs were before a shuffle.

    Args:
        trace: of the script.
        labels: that belong to the inputs.
        order: of the inputs.
    """
    inputs, root = find_root(order.before), find_root(labels)
    if inputs is None or root is None or not _belong_together(inputs, root):
        return False
    if any(part is order.call for part in walk(root)):
        return False
    made = [trace.index(e) for e in trace.events if e.kind == "store" and e.value is root]
    if order.event is not None and not (made and made[0] < trace.index(order.event)):
        return False
    return not any(_may_order(event, order, root) for event in trace.events)


def find_root(value: Value | None) -> Value | None:
    """Return the samples of which a value is a slice, or a copy of another type or shape."""
    for _ in range(10):
        options = options_of(value)
        if len(options) != 1:
            return None
        value = options[0]
        inner = _unwrap(value)
        if inner is None:
            return value
        value = inner
    return None


def _belong_together(inputs: Value, labels: Value) -> bool:
    """Return whether labels certainly are those of inputs: by what they were read or computed."""
    match inputs, labels:
        case (Item(base=a), Item(base=b)) | (Attribute(base=a), Attribute(base=b)):
            return a is b and inputs is not labels
        case Call(path=a), Call(path=b) if a == b and a in _FILES:
            return inputs is not labels
        case _, Operation() | Call():
            return _is_computed_from(labels, inputs)
    return False


def _is_computed_from(value: Value, source: Value) -> bool:
    """Return whether each sample of a value is computed from that of another, as far as is known.

    What depends on the size only, or on all samples together, has no order of samples.
    """
    waiting = [value]
    for _ in range(200):
        if not waiting:
            return False
        found = waiting.pop()
        if found is source:
            return True
        if isinstance(found, Call) and found.name in _MIXES and not _keeps_samples(found):
            return False
        is_size = isinstance(found, Attribute) and found.name in ("shape", "device", "dtype")
        if not is_size and not (isinstance(found, Call) and _SIZES.search(found.name)):
            waiting.extend(found.inputs)
    return False


def _keeps_samples(call: Call) -> bool:
    """Return whether a reduction is over another dimension than the first."""
    place = 0 if call.is_method else 1
    dims = [call.keywords.get("axis"), call.argument(place, "dim")]
    known = [dim.value for dim in dims if isinstance(dim, Constant)]
    return any(type(dim) is int and dim != 0 for dim in known)


def _may_order(event: Event, order: DrawnOrder, labels: Value) -> bool:
    """Return whether an event may bring labels into an order, or write others into them."""
    call = event.call
    if event.kind == "store" and event.base is not None:
        return find_root(event.base) is labels
    if call is None:
        return False
    roots = [find_root(given) for given in call.inputs]
    is_given = any(root is labels for root in roots)
    is_index = order.before is not order.call.argument(0, "")  # not the shuffled samples
    is_indexed = is_index and any(root is order.call for root in roots)
    return is_given and (is_indexed or shuffled_by(event) is not None)


def _draws_order(call: Call) -> bool:
    """Return whether a call brings what it is given into a new order."""
    if call.keywords.get("random_state") is not None or "generator" in call.keywords:
        return False
    if call.path in _ORDERS:
        return True
    if call.name == "permutation" and is_made_by(call.receiver, *_GENERATORS):
        return True
    if call.path in ("sklearn.utils.shuffle", "sklearn.model_selection.train_test_split"):
        shuffle = call.keywords.get("shuffle")
        return len(call.args) == 1 and shuffle is None
    fraction = call.keywords.get("frac")
    return call.name == "sample" and isinstance(fraction, Constant) and fraction.value == 1


def is_seeded_between(trace: Trace, first: Call, second: Call) -> bool:
    """Return whether a generator may have been set back between two calls."""
    calls = [call for _, call in trace.calls]
    places = sorted(index for index, call in enumerate(calls) if call is first or call is second)
    if len(places) != 2:
        return True
    return any(_SEEDS.search(call.path) for call in calls[places[0] + 1 : places[1]])
