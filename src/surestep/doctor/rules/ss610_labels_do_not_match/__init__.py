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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.rules.ss610_labels_do_not_match.drawn_orders import (
    DrawnOrder,
    find_order,
    find_root,
    is_seeded_between,
    keep_order,
    shuffled_by,
)
from surestep.doctor.runtime.batches import find_labels
from surestep.doctor.runtime.losses import MEAN_LOSSES
from surestep.doctor.runtime.origins import LINEAR, name_origin
from surestep.doctor.runtime.passes import Pass, Passes
from surestep.doctor.source.losses import find_losses, find_trained
from surestep.doctor.source.modules import is_named_model
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader


SEVERITY = "error"
REVIEWED = True
FIX = "Draw one order, such as torch.randperm(len(x)), and index the inputs and the labels with it."
_PAIRS = ("torch.utils.data.TensorDataset", "sklearn.model_selection.train_test_split")
_FEWEST_SAMPLES = 50
_FEWEST_TARGETS = 3
_MOST_TARGETS = 100  # whose range is stored
_MOST_LOADERS = 20


def check(program: Program) -> Iterator[Problem]:
    """Find pairs of inputs and labels that were brought into different orders."""
    for trace in program.traces:
        shuffles = [event for event in trace.events if shuffled_by(event) is not None]
        pairs = list(_find_pairs(trace))
        plain = [(find_root(inputs), find_root(labels)) for _, inputs, labels in pairs]
        for event, inputs, labels in pairs:
            orders = find_order(inputs, shuffles), find_order(labels, shuffles)
            first = orders[0]
            if (
                first is not None
                and first.event is None
                and (find_root(first.before), find_root(labels)) in plain
            ):
                continue  # a test of what remains without their relation
            what = _describe_mismatch(trace, event, labels, *orders)
            if what is not None:
                yield at_event(event, f"`{describe(inputs)}` {what}.")


def _find_pairs(trace: Trace) -> Iterator[tuple[Event, Value, Value]]:
    """Yield inputs and labels that belong together from an event on, or that a loss compares."""
    trained = find_trained(trace)
    losses = {loss.event: loss for loss in find_losses(trace, *MEAN_LOSSES)}
    for event in trace.events:
        call, loss = event.call, losses.get(event)
        if call is None or len(call.args) < 2 or call.has_unknown_arguments:
            continue
        is_fit = call.is_method and call.name in ("fit", "partial_fit")
        if call.path in _PAIRS or is_fit:
            yield event, call.args[0], call.args[1]
        elif loss is not None and id(call) in trained:
            output = find_root(loss.input)
            if (
                isinstance(output, Call)
                and output.path == "()"
                and len(output.args) == 1
                and is_named_model(output.receiver)
            ):
                yield event, output.args[0], loss.target


def _describe_mismatch(
    trace: Trace, event: Event, labels: Value, first: DrawnOrder | None, second: DrawnOrder | None
) -> str | None:
    """Return how inputs and labels were brought into different orders; None if they were not."""
    call = event.call
    if call is None or first is None:
        return None
    is_pair = call.path in _PAIRS or call.is_method
    if second is None:
        is_before = first.event is None or trace.index(first.event) < trace.index(event)
        if is_before and len(call.args) == 2 and keep_order(trace, labels, first):
            return f"is shuffled by `{describe(first.call)}`, but `{describe(labels)}` is not"
    elif (
        first.call is not second.call
        and not is_seeded_between(trace, first.call, second.call)
        and (is_pair or (second.before is not None and keep_order(trace, second.before, first)))
    ):
        return (
            f"and `{describe(labels)}` are shuffled apart, by `{describe(first.call)}` and by "
            f"`{describe(second.call)}`"
        )
    return None


@dataclass
class _Labels:
    """The labels of a loader.

    Attributes:
        entry: the pass that runs.
        value: of the first.
        samples: that were seen with it.
        is_constant: whether all have this value.
    """

    entry: Pass
    value: float | None = None
    samples: int = 0
    is_constant: bool = True


class LabelsDoNotMatchWatcher(Watcher):
    """Find labels that are the same in all samples that a classifier trains on."""

    FUNCTIONS = ("cross_entropy",)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._passes = Passes()
        self._labels: WeakKeyDictionary[DataLoader[Any], _Labels] = WeakKeyDictionary()
        self._found: list[_Labels] = []
        self._targets: list[Tensor] = []

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        if loader not in self._labels and len(self._found) < _MOST_LOADERS:
            self._labels[loader] = _Labels(self._passes.begin(run, loader))
            self._found.append(self._labels[loader])

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        seen = self._labels.get(loader)
        if seen is None or (seen.entry.trained and not seen.is_constant):
            return
        seen.entry.begin_batch(run)
        labels = find_labels(batch)
        if labels is None or labels.is_floating_point() or labels.device.type != "cpu":
            seen.is_constant = False
        elif seen.is_constant:
            low, high = labels.aminmax()
            seen.value = float(low) if seen.value is None else seen.value
            seen.is_constant = float(low) == float(high) == seen.value
            seen.samples += len(labels)

    def on_call(self, run: Script, call: TorchCall) -> None:
        target, is_open = call["target"].detach(), len(self._targets) < _MOST_TARGETS
        is_classifier = name_origin(call["input"]) in LINEAR
        if is_open and is_classifier and target.numel() and not target.is_floating_point():
            import torch

            self._targets.append(torch.stack(target.aminmax()))

    def observe(self, run: Script) -> Iterator[Problem]:
        trained = [seen for seen in self._found if seen.entry.trained]
        if len({(seen.is_constant, seen.value) for seen in trained}) != 1:
            return
        seen = trained[0]
        is_used = len(self._targets) >= _FEWEST_TARGETS and all(
            target.tolist() == [seen.value] * 2 for target in self._targets
        )
        if seen.is_constant and is_used and seen.samples >= _FEWEST_SAMPLES:
            yield seen.entry.report(
                f"All labels of {seen.samples} samples are {seen.value:g}, so there is nothing to "
                "distinguish.",
                {"samples": seen.samples, "label": seen.value},
            )
