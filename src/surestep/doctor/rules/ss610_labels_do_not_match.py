"""Inputs and labels are shuffled apart, so a sample has the label of a different one.

Two shuffles draw two orders. Unless both start from the same state of the same generator, the
labels no longer belong to their inputs. Nor do they if only the inputs are shuffled. Nothing
fails: the lengths are right, and the model learns to answer the mean.

While a script runs, labels that are the same in all samples of a classifier are reported.

Labels that are shuffled alone, as in a permutation test, are not reported.

A run of `surestep train` also reads some of the targets. If all are equal, the wrong column was
read, and the model learns to answer it without its inputs. If nearly all have one class, the
accuracy of that answer is shown, since a metric below it is worth nothing.

Source: https://scikit-learn.org/stable/modules/generated/sklearn.utils.shuffle.html

Wrong:

    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    X, y = np.random.randn(20, 4), np.random.randint(2, size=20)
    np.random.shuffle(X)
    np.random.shuffle(y)
    data = TensorDataset(torch.tensor(X), torch.tensor(y))

Right:

    import torch
    from torch import nn

    points, out = nn.Linear(3, 16), nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*points.parameters(), *out.parameters()], lr=1e-3)
    for _ in range(20):
        cloud = torch.randn(32, 3)
        radius = cloud.norm(dim=1).max().view(1)
        shuffled = cloud[torch.randperm(32)]  # the order of points does not matter
        loss = nn.functional.mse_loss(out(points(shuffled).relu().amax(0)), radius)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.batches import find_labels
from surestep.doctor.runtime.losses import MEAN_LOSSES
from surestep.doctor.runtime.origins import LINEAR, name_origin
from surestep.doctor.runtime.passes import Pass
from surestep.doctor.source.dimensions import dim_of
from surestep.doctor.source.losses import find_losses, find_trained
from surestep.doctor.source.modules import is_named_model, traverse_inputs
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import base_of, describe, is_made_by, options_of
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Item,
    Operation,
    Value,
    is_made_from,
)
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader


SEVERITY = "error"
REVIEWED = True
FIX = "Draw one order, such as torch.randperm(len(x)), and index the inputs and the labels with it."
_SPLIT = "sklearn.model_selection.train_test_split"
_PAIRS = ("torch.utils.data.TensorDataset", _SPLIT)
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
_MOST_PARTS = 200  # of labels
_FEWEST_SAMPLES = 50
_FEWEST_TARGETS = 3
_MOST_TARGETS = 100  # whose range is stored
_MOST_LOADERS = 20


class _Order(NamedTuple):
    """The order of samples that a call drew.

    Attributes:
        call: that drew it.
        before: the samples in the order that they had before; None if that is not known.
        event: the call, if it shuffled them in place.
    """

    call: Call
    before: Value | None = None
    event: Event | None = None


def check(program: Program) -> Iterator[Problem]:
    """Find pairs of inputs and labels that were brought into different orders."""
    for trace in program.traces:
        shuffles = {
            shuffled: _Order(call, shuffled, event)
            for event, call in reversed(trace.calls)
            if (shuffled := _shuffled_by(call)) is not None and not event.branches
        }
        pairs = list(_find_pairs(trace))
        plain = [(_find_root(inputs), _find_root(labels)) for _, _, inputs, labels in pairs]
        for event, call, inputs, labels in pairs:
            first, second = (_find_order(value, shuffles) for value in (inputs, labels))
            before = first and first.event is None and _find_root(first.before)
            if first is None or (before, _find_root(labels)) in plain:
                continue  # a test of what remains without their relation
            name, shuffle = describe(labels), describe(first.call)
            if second is None:
                is_before = first.event is None or trace.index(first.event) < trace.index(event)
                is_wrong = is_before and len(call.args) == 2 and _keep_order(trace, labels, first)
                what = f"is shuffled by `{shuffle}`, but `{name}` is not"
            else:
                is_pair = call.path in _PAIRS or call.is_method
                is_wrong = is_pair or _keep_order(trace, second.before, first)
                is_wrong = is_wrong and not _may_share_state(trace, first.call, second.call)
                both = f"`{shuffle}` and by `{describe(second.call)}`"
                what = f"and `{name}` are shuffled apart, by {both}"
            if is_wrong:
                yield at_event(event, f"`{describe(inputs)}` {what}.")


def _find_pairs(trace: Trace) -> Iterator[tuple[Event, Call, Value, Value]]:
    """Yield inputs and labels that belong together from a call on, or that a loss compares."""
    trained = find_trained(trace)
    losses = {loss.event: loss for loss in find_losses(trace, *MEAN_LOSSES)}
    for event, call in trace.calls:
        if len(call.args) < 2 or call.has_unknown_arguments:
            continue
        if call.path in _PAIRS or call.path in (".fit", ".partial_fit"):
            yield event, call, call.args[0], call.args[1]
        elif event in losses and id(call) in trained:
            match _find_root(losses[event].input):
                case Call("()", model, (inputs,)) if is_named_model(model):
                    yield event, call, inputs, losses[event].target


def _shuffled_by(call: Call | None) -> Value | None:
    """Return what a call shuffles in place."""
    if call is None or not call.args:
        return None
    is_generator = call.name == "shuffle" and is_made_by(call.receiver, *_GENERATORS)
    return call.args[0] if call.path in _SHUFFLES or is_generator else None


def _find_order(value: Value, shuffles: dict[Value, _Order]) -> _Order | None:
    """Return the order of the samples of a value, if a call drew it."""
    options = options_of(value)
    if value in shuffles or len(options) != 1:
        return shuffles.get(value)
    only = options[0]
    if isinstance(only, Item):
        if drawn := _find_drawn(only.index):
            return _Order(drawn, only.base)
        if _draws_order(only.base):
            return _Order(only.base)
    elif _draws_order(only):
        return _Order(only, only.argument(0, ""))
    inner = _unwrap(only)
    return None if inner is None else _find_order(inner, shuffles)


def _find_root(value: Value | None) -> Value | None:
    """Return the samples of which a value is a slice, or a copy of another type or shape."""
    match options_of(value):
        case (only,):
            inner = _unwrap(only)
            return only if inner is None else _find_root(inner)
    return None


def _unwrap(value: Value) -> Value | None:
    """Undo the last step of what `_find_root` undoes; None if there is none."""
    match value:
        case Item(index=Collection()):
            return None  # columns
        case Attribute(base, "values"):
            return base
    return base_of(value, _CONVERSIONS)


def _find_drawn(index: Value | None) -> Call | None:
    """Return the call that drew an index, or of which it is a slice."""
    while index is not None and not _draws_order(index):
        index = _unwrap(index)
    return index


def _draws_order(value: Value) -> TypeGuard[Call]:
    """Return whether a value is a call that brings what it is given into a new order."""
    if not isinstance(value, Call) or value.keywords.keys() & {"random_state", "generator"}:
        return False
    is_alone = len(value.args) == 1 and "shuffle" not in value.keywords
    return (
        value.path in _ORDERS
        or (value.name == "permutation" and is_made_by(value.receiver, *_GENERATORS))
        or (value.path in ("sklearn.utils.shuffle", _SPLIT) and is_alone)
        or (value.name == "sample" and getattr(value.keywords.get("frac"), "value", 0) == 1)
    )


def _may_share_state(trace: Trace, first: Call, second: Call) -> bool:
    """Return whether a generator may have been set back between two calls."""
    calls = [call for _, call in trace.calls]
    places = sorted(index for index, call in enumerate(calls) if call in (first, second))
    if len(places) != 2:
        return True
    return any(_SEEDS.search(call.path) for call in calls[places[0] + 1 : places[1]])


def _keep_order(trace: Trace, labels: Value | None, order: _Order) -> bool:
    """Return whether labels certainly have the order in which their inputs were before a shuffle.

    Args:
        trace: of the script.
        labels: that belong to the inputs.
        order: of the inputs.
    """
    inputs, root = _find_root(order.before), _find_root(labels)
    if inputs is None or root is None or not _belong_together(inputs, root):
        return False
    events = trace.events[: trace.index(order.event)] if order.event else []
    is_made = not order.event or any(e.kind == "store" and e.value is root for e in events)
    may_order = any(_may_order(event, order, root) for event in trace.events)
    return is_made and not may_order and not is_made_from(root, order.call)


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
    for part in traverse_inputs(value, _MOST_PARTS, stop_at=_is_size):
        if part is source:
            return True
        if isinstance(part, Call) and part.name in _MIXES:
            dim = getattr(dim_of(part), "value", 0)
            if type(dim) is not int or dim == 0:
                return False
    return False


def _is_size(value: Value) -> bool:
    is_attribute = isinstance(value, Attribute) and value.name in ("shape", "device", "dtype")
    return is_attribute or (isinstance(value, Call) and bool(_SIZES.search(value.name)))


def _may_order(event: Event, order: _Order, labels: Value) -> bool:
    """Return whether an event may bring labels into an order, or write others into them."""
    if event.kind == "store" and event.base is not None:
        return _find_root(event.base) is labels
    roots = [_find_root(given) for given in event.call.inputs] if event.call else []
    is_index = order.before is not order.call.argument(0, "")  # not the shuffled samples
    is_indexed = is_index and order.call in roots
    return labels in roots and (is_indexed or _shuffled_by(event.call) is not None)


@dataclass
class _Labels(Pass):
    """The labels of a loader.

    Attributes:
        value: of the first.
        samples: that were seen with it.
        is_constant: whether all have this value.
    """

    value: float | None = None
    samples: int = 0
    is_constant: bool = True


class LabelsDoNotMatchWatcher(Watcher):
    """Find labels that are the same in all samples that a classifier trains on."""

    FUNCTIONS = ("cross_entropy",)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._labels: WeakKeyDictionary[DataLoader[Any], _Labels] = WeakKeyDictionary()
        self._found: list[_Labels] = []
        self._targets: list[Tensor] = []

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        if loader not in self._labels and len(self._found) < _MOST_LOADERS:
            self._labels[loader] = _Labels(run.locate(), run.step + 1)
            self._found.append(self._labels[loader])

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        seen = self._labels.get(loader)
        if seen is None or (seen.trained and not seen.is_constant):
            return
        seen.begin_batch(run)
        labels = find_labels(batch)
        if labels is None or labels.is_floating_point() or labels.device.type != "cpu":
            seen.is_constant = False
        elif seen.is_constant:
            low, high = map(float, labels.aminmax())
            seen.value = low if seen.value is None else seen.value
            seen.is_constant = low == high == seen.value
            seen.samples += len(labels)

    def on_call(self, run: Script, call: TorchCall) -> None:
        target, is_open = call["target"].detach(), len(self._targets) < _MOST_TARGETS
        is_classifier = name_origin(call["input"]) in LINEAR
        if is_open and is_classifier and target.numel() and not target.is_floating_point():
            import torch

            self._targets.append(torch.stack(target.aminmax()))

    def observe(self, run: Script) -> Iterator[Problem]:
        trained = [seen for seen in self._found if seen.trained]
        if len({(seen.is_constant, seen.value) for seen in trained}) != 1:
            return
        seen = trained[0]
        is_used = len(self._targets) >= _FEWEST_TARGETS and all(
            target.tolist() == [seen.value] * 2 for target in self._targets
        )
        if seen.is_constant and is_used and seen.samples >= _FEWEST_SAMPLES:
            yield seen.report(
                f"All labels of {seen.samples} samples are {seen.value:g}, so there is nothing to "
                "distinguish.",
                {"samples": seen.samples, "label": seen.value},
            )
