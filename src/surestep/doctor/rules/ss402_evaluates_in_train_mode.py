"""A model with dropout or BatchNorm is evaluated in train mode.

Dropout then makes the metrics worse and different in each evaluation. BatchNorm normalises with the
statistics of each batch, and updates its running statistics from the validation data. Nothing
fails: the numbers are only wrong.

Ignore it if train mode is wanted, as for Monte-Carlo dropout. Forward passes whose output is not
compared with targets, such as those that update the statistics of BatchNorm, are not reported.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disable-grad-doc
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.batches import list_tensors
from surestep.doctor.runtime.evaluations import Evaluations
from surestep.doctor.runtime.losses import MEAN_LOSSES
from surestep.doctor.runtime.modes import is_norm, list_switched
from surestep.doctor.source.evaluation import (
    find_forwards,
    has_training,
    is_held_out,
    is_measured,
)
from surestep.doctor.source.modes import find_switch, is_never_switched
from surestep.doctor.source.modules import depends_on_mode
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    describe,
    is_made_by,
    is_without_grad,
    options_of,
    strip,
)
from surestep.doctor.source.values import Call, Instance, Value
from surestep.doctor.watcher import NOWHERE, Observation, Run, Watcher
from surestep.doctor.watcher import Call as CallOfTorch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import DataLoader

SEVERITY = "error"
FIX = "Call model.eval() before the evaluation, and model.train() before training continues."
_FEWEST = 2  # outputs that were compared with targets
_MOST = 20  # outputs; later ones are not checked
CHECK_SKIPS = ("bad_threshold", "bad_loss_of_the_model")  # no loss or metric of the output
_ON_PURPOSE = re.compile(r"monte.?carlo|mc_?dropout|enable_dropout", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find measured forward passes without gradients in train mode."""
    if program.contains(_ON_PURPOSE):
        return
    for trace in program.traces:
        for event, output in find_forwards(trace):
            model = strip(output.receiver)
            if model is None or not is_without_grad(event) or not depends_on_mode(model):
                continue
            if not _is_evaluation(trace, event, output):
                continue
            switch = find_switch(trace, event, model, is_training=True)
            if switch is not None or _stays_in_train_mode(trace, event, model):
                yield at_event(
                    event,
                    f"`{describe(output.receiver)}` is in train mode here: dropout and BatchNorm "
                    "change what is measured.",
                    train_line=getattr(switch.event.node, "lineno", None) if switch else None,
                )


def _is_evaluation(trace: Trace, event: Event, output: Call) -> bool:
    if event.loop is not None:
        if has_training(trace, event):
            if not is_held_out(output):
                return False
        elif is_made_by(event.loop.iterated, "range"):
            return False  # samples of the output, with dropout on purpose
    return is_measured(trace, event, output)


def _stays_in_train_mode(trace: Trace, event: Event, model: Value) -> bool:
    is_new = all(
        isinstance(option, Instance)
        or is_made_by(option, "torch.nn.", "torchvision.models.", "timm.create_model")
        for option in options_of(model)
    )
    is_made_here = trace.entry is None or any(
        model in (made.value, strip(made.value)) for made in trace.events
    )
    return is_new and is_made_here and is_never_switched(trace, event, model)


class Watch(Watcher):
    """Find outputs without gradients in train mode that are measured, or made for a DataLoader."""

    FUNCTIONS = (*MEAN_LOSSES, "dropout", "argmax", "max", "eq", "numpy", "tolist")

    def __init__(self) -> None:
        self._forget()
        self._is_loss_inside = False  # the model computes the loss itself
        self._is_dropped = False  # some of its features are
        self._location = NOWHERE
        self._first = self._mistakes = 0
        self._layer = self._name = ""
        self._evaluations = Evaluations()

    def _forget(self) -> None:
        self._has_norm = False  # in the last forward pass
        self._outputs: list[weakref.ref[Tensor]] = []
        self._predicted: weakref.ref[Tensor] | None = None

    def on_loader(self, run: Run, loader: DataLoader[Any]) -> None:
        self._evaluations.begin(run, loader)

    def on_batch(self, run: Run, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        self._evaluations.count_batch()

    def after_loader(self, run: Run, loader: DataLoader[Any]) -> None:
        self._evaluations.end(run)

    def after_forward(
        self, run: Run, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if len(run.modules) != 1 or run.in_backward:
            return
        import torch

        self._forget()
        is_loss_inside, is_dropped = self._is_loss_inside, self._is_dropped
        self._is_loss_inside = self._is_dropped = False
        if torch.is_grad_enabled() or not module.training or self._mistakes >= _MOST:
            return
        layers = [layer for layer in list_switched(module) if layer.training]
        if not layers and not is_dropped:
            return
        self._name = type(module).__name__
        self._layer = type(layers[0]).__name__ if layers else "dropout"
        self._has_norm = any(map(is_norm, layers))
        self._outputs = [weakref.ref(tensor) for tensor in list_tensors(output)]
        if is_loss_inside:
            self._count(run)
        elif not self._has_norm:
            self._evaluations.count_call(
                run, self._name
            )  # not to update the statistics of a BatchNorm

    def on_call(self, run: Run, call: CallOfTorch) -> None:
        if call.name == "dropout":
            self._is_dropped |= bool(run.modules and call["training"] and call["p"])
        elif call.name in MEAN_LOSSES:
            if call["reduction"] == "none" or call.result.requires_grad:
                return  # a loss for each sample often chooses what is trained on
            if self._is_output(call["input"]):
                self._count(run)
            elif run.modules:
                self._is_loss_inside = True
        elif call.name == "eq":
            if _is_of(call["input"], self._predicted) or _is_of(call["other"], self._predicted):
                self._count(run)
        elif self._is_output(call["input"]):
            if self._has_norm:
                self._evaluations.count_call(run, self._name)
                self._has_norm = False  # each output once
            if call.name in ("argmax", "max"):
                result = call.result
                self._predicted = weakref.ref(result[1] if isinstance(result, tuple) else result)

    def _is_output(self, value: Any) -> bool:
        return any(_is_of(value, output) for output in self._outputs)

    def _count(self, run: Run) -> None:
        self._mistakes += 1
        if self._mistakes == 1:
            self._first, self._location = run.step + 1, run.locate()
        self._forget()  # each output once

    def observe(self, run: Run) -> Iterator[Observation]:
        evaluations = self._evaluations.list_ended(run)
        if self._mistakes >= _FEWEST:
            yield Observation(
                self._location,
                f"At least {self._mistakes} outputs of {self._name} without gradients were compared"
                f" with targets in train mode, with an active {self._layer}.",
                self._first,
                {"outputs": self._mistakes, "layer": self._layer},
            )
        elif len(evaluations) >= _FEWEST:
            yield Observation(
                evaluations[0].location,
                f"{evaluations[0].model} was in train mode, with an active {self._layer}, in "
                f"{len(evaluations)} passes over a DataLoader in which nothing was trained.",
                evaluations[0].step + 1,
                {"passes": len(evaluations), "layer": self._layer},
            )


def _is_of(value: Any, reference: weakref.ref[Tensor] | None) -> bool:
    """Return whether a value is a tensor, or a view of it."""
    tensor = None if reference is None else reference()
    return tensor is not None and (value is tensor or getattr(value, "_base", None) is tensor)


def bad_validation_in_the_epoch():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
    for _ in range(2):
        for x, y in batches[:3]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in batches[3:]:
                accuracy = (model(x).argmax(1) == y).float().mean()
        print(accuracy)


def bad_in_a_function():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.norm(x))

    @torch.no_grad()
    def evaluate(model, batches):
        criterion = nn.MSELoss(reduction="sum")
        return sum(criterion(model(x), y).item() for x, y in batches)

    model = Net()
    model.train()
    print(evaluate(model, [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]))


def bad_full_batch():
    import torch
    import torch.nn as nn

    X, y = torch.randn(64, 4), torch.randint(0, 2, (64,))
    X_train, y_train, X_test, y_test = X[:48], y[:48], X[48:], y[48:]
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    loss_fn = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(net.parameters())
    for _ in range(3):
        net.train()
        opt.zero_grad()
        loss_fn(net(X_train), y_train).backward()
        opt.step()
        with torch.inference_mode():
            print(loss_fn(net(X_test), y_test).item())


def bad_after_loading():
    import io

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    correct = 0
    with torch.no_grad():
        for images, labels in ((x[:8], y[:8]), (x[8:], y[8:])):
            predicted = model(images).argmax(dim=1)
            correct += (predicted == labels).sum().item()
    print(correct / len(y))


def bad_threshold():
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(net.parameters())
    criterion = nn.BCEWithLogitsLoss()
    data = TensorDataset(torch.randn(48, 4), torch.rand(48, 2).round())
    train_loader = DataLoader(data, batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.rand(16, 2).round()), 8)
    for _ in range(3):
        net.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            criterion(net(x), y).backward()
            optimizer.step()
        hits = 0
        with torch.no_grad():
            for x, y in val_loader:
                predicted = torch.sigmoid(net(x)) > 0.5
                hits += (predicted & (y > 0.5)).sum().item()
        print(hits)


def bad_loss_of_the_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x, targets=None):
            logits = self.head(F.dropout(x, 0.1, training=self.training))
            loss = None if targets is None else F.cross_entropy(logits, targets)
            return logits, loss

    @torch.no_grad()
    def estimate_loss():
        losses = torch.zeros(4)
        for i in range(4):
            _, loss = model(torch.randn(8, 4), torch.randint(3, (8,)))
            losses[i] = loss.item()
        return losses.mean()

    model = Classifier()
    model.train()
    print(estimate_loss())


def good_eval_and_train():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
    for _ in range(2):
        model.train()
        for x, y in batches[:3]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            for x, y in batches[3:]:
                correct += (model(x).argmax(1) == y).sum().item()
        print(correct)


def good_monte_carlo_samples():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    model.train()
    with torch.no_grad():
        samples = torch.stack([model(x) for _ in range(20)])
    print(samples.std(0), nn.functional.mse_loss(samples.mean(0), y))


def good_statistics_of_batchnorm():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    batches = [torch.randn(8, 4) for _ in range(4)]
    model.train()
    with torch.no_grad():
        for x in batches:
            model(x)
    model.eval()


def good_samples_of_a_loader():
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8)
    model.train()
    with torch.no_grad():
        samples = [torch.cat([model(x) for (x,) in loader]) for _ in range(5)]
    print(torch.stack(samples).std(0))


def good_update_of_statistics():
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    loaders = [DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8) for _ in range(3)]
    model.train()
    with torch.no_grad():
        for loader in loaders:
            for (x,) in loader:
                model(x)
    model.eval()


def good_teacher():
    import torch
    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    student, teacher = build(), build()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(5):
        x = torch.randn(8, 4)
        with torch.no_grad():
            wanted = teacher(x)
        loss = nn.functional.mse_loss(wanted, student(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.lerp_(new, 0.1)


def good_without_modes():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    x_val, y_val = torch.randn(8, 4), torch.randn(8, 1)
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x_val), y_val).item())


def good_mode_of_the_phase():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for phase in ("train", "val"):
        model.train(phase == "train")
        x, y = torch.randn(8, 4), torch.randint(2, (8,))
        with torch.set_grad_enabled(phase == "train"):
            loss = nn.functional.cross_entropy(model(x), y)
        if phase == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(phase, loss.item())


def good_mean_teacher():
    import copy

    import torch
    from torch import nn

    student = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    teacher = copy.deepcopy(student)  # also with dropout
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(10):
        x = torch.randn(8, 4)
        with torch.no_grad():
            target = teacher(x).softmax(1)
        optimizer.zero_grad()
        nn.functional.mse_loss(student(x).softmax(1), target).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
                kept.lerp_(new, 0.01)
