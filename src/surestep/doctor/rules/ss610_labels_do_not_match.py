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

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.batches import find_labels
from surestep.doctor.runtime.loss_curves import MEAN_LOSSES
from surestep.doctor.runtime.origins import LINEAR, name_origin
from surestep.doctor.runtime.passes import Pass
from surestep.doctor.source.dimensions import mixes_samples
from surestep.doctor.source.losses import find_losses, find_trained
from surestep.doctor.source.modules import is_named_model, traverse_inputs
from surestep.doctor.source.orders import SPLIT, SampleOrder, find_order, find_root, shuffled_by
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Attribute, Call, Item, Operation, Value, is_made_from
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader


SEVERITY = "error"
REVIEWED = True
FIX = "Draw one order, such as torch.randperm(len(x)), and index the inputs and the labels with it."
_PAIRS = ("torch.utils.data.TensorDataset", SPLIT, ".fit", ".partial_fit")
_FILES = ("numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "torch.load")
_SIZES = re.compile(
    r"^(shape|device|dtype|len|size|zeros|ones|full|empty|eye|arange|rand|new_)|_like$"
)
_SEEDS = re.compile(r"seed|set_state|set_rng_state|setstate|RandomState|default_rng|Random$")
_MOST_PARTS = 200  # of labels
_FEWEST_SAMPLES = 50
_FEWEST_TARGETS = 6  # the least and the largest of three batches
_MOST_TARGETS = 200
_MOST_LOADERS = 20


def check(program: Program) -> Iterator[Problem]:
    """Find pairs of inputs and labels that were brought into different orders."""
    for trace in program.traces:
        pairs = list(_find_pairs(trace))
        plain = [(find_root(inputs), find_root(labels)) for _, _, inputs, labels in pairs]
        for event, call, inputs, labels in pairs:
            first, second = (find_order(trace, value) for value in (inputs, labels))
            before = first and first.event is None and find_root(first.before)
            if first is None or (before, find_root(labels)) in plain:
                continue  # a test of what remains without their relation
            name, shuffle = describe(labels), describe(first.call)
            if second is None:
                is_before = first.event is None or trace.index(first.event) < trace.index(event)
                is_wrong = is_before and len(call.args) == 2 and _keep_order(trace, labels, first)
                what = f"is shuffled by `{shuffle}`, but `{name}` is not"
            else:
                is_wrong = call.path in _PAIRS or _keep_order(trace, second.before, first)
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
        if call.path in _PAIRS:
            yield event, call, call.args[0], call.args[1]
        elif event in losses and id(call) in trained:
            match find_root(losses[event].input):
                case Call("()", model, (inputs,)) if is_named_model(model):
                    yield event, call, inputs, losses[event].target


def _may_share_state(trace: Trace, first: Call, second: Call) -> bool:
    """Return whether a generator may have been set back between two calls."""
    calls = [call for _, call in trace.calls]
    places = sorted(index for index, call in enumerate(calls) if call in (first, second))
    between = calls[slice(*places)]
    return len(places) != 2 or any(_SEEDS.search(call.path) for call in between[1:])


def _keep_order(trace: Trace, labels: Value | None, order: SampleOrder) -> bool:
    """Return whether labels certainly have the order in which their inputs were before a shuffle.

    Args:
        trace: of the script.
        labels: that belong to the inputs.
        order: of the inputs.
    """
    inputs, root = find_root(order.before), find_root(labels)
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
    for part in traverse_inputs(value, _MOST_PARTS, stop_at=_gives_size):
        if part is source:
            return True
        if isinstance(part, Call) and mixes_samples(part) is not False:
            return False
    return False


def _gives_size(value: Value) -> bool:
    return bool(_SIZES.search(getattr(value, "name", "")))


def _may_order(event: Event, order: SampleOrder, labels: Value) -> bool:
    """Return whether an event may bring labels into an order, or write others into them."""
    if event.kind == "store" and event.base is not None:
        return find_root(event.base) is labels
    roots = [find_root(given) for given in event.call.inputs] if event.call else []
    is_index = order.before is not order.call.argument(0, "")  # not the shuffled samples
    is_indexed = is_index and order.call in roots
    return labels in roots and (is_indexed or shuffled_by(event.call) is not None)


@dataclass
class _Labels(Pass):
    """The labels of a loader.

    Attributes:
        values: the least and the largest of each batch.
        samples: that were seen.
    """

    values: set[float] = field(default_factory=set)
    samples: int = 0


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
        if seen is None or (seen.trained and len(seen.values) > 1):
            return
        seen.begin_batch(run)
        labels = find_labels(batch)
        if labels is None or labels.is_floating_point() or labels.device.type != "cpu":
            seen.values |= {-math.inf, math.inf}  # it is not known
        elif len(seen.values) < 2:
            seen.values |= set(map(float, labels.aminmax()))
            seen.samples += len(labels)

    def on_call(self, run: Script, call: TorchCall) -> None:
        target, is_open = call["target"].detach(), len(self._targets) < _MOST_TARGETS
        is_classifier = name_origin(call["input"]) in LINEAR
        if is_open and is_classifier and target.numel() and not target.is_floating_point():
            self._targets += target.aminmax()

    def observe(self, run: Script) -> Iterator[Problem]:
        trained = [seen for seen in self._found if seen.trained]
        values = set(map(float, self._targets)).union(*(seen.values for seen in trained))
        for seen in trained[:1] if len(self._targets) >= _FEWEST_TARGETS else ():
            if len(values) == 1 and seen.samples >= _FEWEST_SAMPLES:
                yield seen.report(
                    f"All labels of {seen.samples} samples are {min(values):g}, so there is "
                    "nothing to distinguish.",
                    {"samples": seen.samples, "label": min(values)},
                )
