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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.remark import Remark
from surestep.doctor.runtime.batches import find_labels
from surestep.doctor.runtime.losses import MEAN_LOSSES
from surestep.doctor.runtime.origins import LINEAR, name_origin
from surestep.doctor.runtime.passes import Pass, Passes
from surestep.doctor.source.losses import find_losses, find_trained
from surestep.doctor.source.modules import is_named_model
from surestep.doctor.source.orders import (
    Order,
    find_order,
    find_root,
    is_seeded_between,
    keep_order,
    shuffled_by,
)
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Value
from surestep.doctor.watcher import Call as Called
from surestep.doctor.watcher import Observation, Run, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader

    from surestep.doctor.data_case import DataCase

SEVERITY = "error"
_FEWEST = 50  # targets
_MOSTLY = 0.98  # of the labels in one class
FIX = "Draw one order, such as torch.randperm(len(x)), and index the inputs and the labels with it."
_PAIRS = ("torch.utils.data.TensorDataset", "sklearn.model_selection.train_test_split")
_FEWEST_SAMPLES = 50
_FEWEST_TARGETS = 3
_MOST_TARGETS = 100  # whose range is stored
_MOST_LOADERS = 20
CHECK_SKIPS = ("bad_same_label",)
WATCH_SKIPS = (
    "bad_two_shuffles",
    "bad_two_permutations",
    "bad_two_splits",
    "bad_generator",
    "bad_inputs_alone",
)


def check(program: Program) -> Iterator[Problem]:
    """Find pairs of inputs and labels that were brought into different orders."""
    for trace in program.traces:
        shuffles = [event for event in trace.events if shuffled_by(event) is not None]
        pairs = list(_find_pairs(trace))
        plain = [(find_root(inputs), find_root(labels)) for _, inputs, labels in pairs]
        for event, inputs, labels in pairs:
            orders = find_order(inputs, shuffles), find_order(labels, shuffles)
            first = orders[0]
            if first is not None and first.event is None:
                if (find_root(first.before), find_root(labels)) in plain:
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
            if isinstance(output, Call) and output.path == "()" and len(output.args) == 1:
                if is_named_model(output.receiver):
                    yield event, output.args[0], loss.target


def _describe_mismatch(
    trace: Trace, event: Event, labels: Value, first: Order | None, second: Order | None
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
    elif first.call is not second.call and not is_seeded_between(trace, first.call, second.call):
        if is_pair or (second.before is not None and keep_order(trace, second.before, first)):
            return (
                f"and `{describe(labels)}` are shuffled apart, by `{describe(first.call)}` and by "
                f"`{describe(second.call)}`"
            )
    return None


def inspect(data: DataCase) -> Iterator[Remark]:
    """Find targets that do not vary, and labels of which nearly all are equal."""
    values, labels = data.train.values, data.train.labels
    if values is None or len(values) < _FEWEST or data.loop.loader.loss.kind == "none":
        return
    if data.train.share is None:  # a stream may be ordered by its targets
        return
    if bool((values == values[0]).all()):
        yield Remark(
            f"All {len(values)} training targets that were read are {values[0].item():g}.",
            {"targets": len(values), "value": values[0].item()},
            "Check which column or folder the targets are read from.",
            "warning",
        )
    elif labels is not None:
        classes, counts = labels.unique(return_counts=True)
        share, usual = float(counts.max()) / len(labels), int(classes[counts.argmax()])
        if share >= _MOSTLY:
            yield Remark(
                f"{share:.1%} of the {len(labels)} training labels that were read are {usual}, so "
                "a model that always answers it has this accuracy.",
                {"share": share, "class": usual, "labels": len(labels)},
                "Compare metrics with that, and measure the rare classes too, such as by F1.",
                "info",
            )


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


class Watch(Watcher):
    """Find labels that are the same in all samples that a classifier trains on."""

    FUNCTIONS = ("cross_entropy",)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._passes = Passes()
        self._labels: WeakKeyDictionary[DataLoader[Any], _Labels] = WeakKeyDictionary()
        self._found: list[_Labels] = []
        self._targets: list[Tensor] = []

    def on_loader(self, run: Run, loader: DataLoader[Any]) -> None:
        if loader not in self._labels and len(self._found) < _MOST_LOADERS:
            self._labels[loader] = _Labels(self._passes.begin(run, loader))
            self._found.append(self._labels[loader])

    def on_batch(self, run: Run, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
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

    def on_call(self, run: Run, call: Called) -> None:
        target, is_open = call["target"].detach(), len(self._targets) < _MOST_TARGETS
        is_classifier = name_origin(call["input"]) in LINEAR
        if is_open and is_classifier and target.numel() and not target.is_floating_point():
            import torch

            self._targets.append(torch.stack(target.aminmax()))

    def observe(self, run: Run) -> Iterator[Observation]:
        trained = [seen for seen in self._found if seen.entry.trained]
        if len({(seen.is_constant, seen.value) for seen in trained}) != 1:
            return
        seen = trained[0]
        is_used = len(self._targets) >= _FEWEST_TARGETS and all(
            target.tolist() == [seen.value] * 2 for target in self._targets
        )
        if seen.is_constant and is_used and seen.samples >= _FEWEST_SAMPLES:
            yield Observation(
                seen.entry.location,
                f"All labels of {seen.samples} samples are {seen.value:g}, so there is nothing to "
                "distinguish.",
                seen.entry.since_step,
                {"samples": seen.samples, "label": seen.value},
            )


def bad_two_shuffles() -> None:
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    X, y = np.random.randn(20, 4), np.random.randint(2, size=20)
    np.random.shuffle(X)
    np.random.shuffle(y)
    data = TensorDataset(torch.tensor(X), torch.tensor(y))


def bad_two_permutations() -> None:
    import torch
    from torch.utils.data import TensorDataset

    inputs, labels = torch.randn(20, 4), torch.randint(2, (20,))
    inputs = inputs[torch.randperm(20)]
    labels = labels[torch.randperm(20)]
    data = TensorDataset(inputs, labels)


def bad_two_splits() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 4)), np.arange(20) % 2
    X_train, X_test = train_test_split(X)
    y_train, y_test = train_test_split(y)
    model = LogisticRegression()
    model.fit(X_train, y_train)


def bad_inputs_alone() -> None:
    import torch
    from torch import nn

    x = torch.randn(40, 4)
    y = (x.sum(1) > 0).long()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        order = torch.randperm(len(x))
        x = x[order]
        for i in range(0, 40, 8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[i : i + 8]), y[i : i + 8]).backward()
            optimizer.step()


def good_target_of_a_set():
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


def good_labels_of_shuffled_inputs() -> None:
    import torch
    from torch import nn

    x = torch.randn(40, 4)
    x = x[torch.randperm(len(x))]
    y = (x.sum(1) > 0).long()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        order = torch.randperm(len(x))
        for i in range(0, 40, 8):
            picked = order[i : i + 8]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[picked]), y.index_select(0, picked)).backward()
            optimizer.step()


def bad_generator() -> None:
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    class Data:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)
            self.X, self.y = np.ones((20, 4)), np.arange(20) % 2

        def load(self):
            x, y = self.rng.permutation(self.X), self.rng.permutation(self.y)
            return TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y))

    Data().load()


def bad_constant_in_trainer():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.ones(60, dtype=torch.long)
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_rare_class_in_trainer():
    import torch

    import surestep

    x, y = torch.randn(200, 4), (torch.arange(200) == 99).long()
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_balanced_in_trainer():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_one_order() -> None:
    import torch
    from torch.utils.data import TensorDataset

    inputs, labels = torch.randn(20, 4), torch.randint(2, (20,))
    order = torch.randperm(20)
    data = TensorDataset(inputs[order], labels[order])


def good_same_state() -> None:
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    X, y = np.random.randn(20, 4), np.random.randint(2, size=20)
    np.random.seed(0)
    np.random.shuffle(X)
    np.random.seed(0)
    np.random.shuffle(y)
    data = TensorDataset(torch.tensor(X), torch.tensor(y))


def good_together() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.utils import shuffle

    X, y = shuffle(np.ones((20, 4)), np.arange(20) % 2)
    X_train, X_test, y_train, y_test = train_test_split(X, y)
    LogisticRegression().fit(X_train, y_train)


def good_permutation_test() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    X, y = np.random.randn(20, 4), np.arange(20) % 2
    score = LogisticRegression().fit(X, y).score(X, y)
    chance = LogisticRegression().fit(X, np.random.permutation(y)).score(X, y)


def good_same_random_state() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    X, y = np.ones((20, 4)), np.arange(20) % 2
    X_train, X_test = train_test_split(X, random_state=1)
    y_train, y_test = train_test_split(y, random_state=1)
    LogisticRegression().fit(X_train, y_train)


def bad_same_label():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = torch.cat([torch.randn(64, 4), torch.ones(64, 1)], 1)  # the last column was not read
    data = TensorDataset(rows[:, :4], rows[:, 4].long())
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def good_labels_that_are_not_used():
    import torch
    from torch.nn.functional import cross_entropy, normalize
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    encoder = torch.nn.Linear(4, 8)
    optimizer = torch.optim.Adam(encoder.parameters())
    for x, _ in DataLoader(data, batch_size=8, shuffle=True):
        first = normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        second = normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        positive = (first * second).sum(1, keepdim=True)
        negative = first @ second.roll(1, 0).T
        logits = torch.cat([positive, negative], 1) / 0.1
        optimizer.zero_grad()
        cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)).backward()
        optimizer.step()
