"""A model with dropout or BatchNorm is evaluated in train mode.

Dropout then makes the metrics worse and different in each evaluation. BatchNorm normalises with the
statistics of each batch, and updates its running statistics from the validation data. Nothing
fails: the numbers are only wrong.

Ignore it if train mode is wanted, as for Monte-Carlo dropout. Forward passes whose output is not
compared with targets, such as those that update the statistics of BatchNorm, are not reported.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disable-grad-doc

Wrong:

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

Right:

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
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.batches import list_tensors
from surestep.doctor.runtime.evaluations import EvaluationWatcher
from surestep.doctor.runtime.loss_curves import MEAN_LOSSES
from surestep.doctor.runtime.mode_layers import is_norm, list_mode_layers
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.evaluation import (
    find_forwards,
    has_training,
    is_held_out,
    is_made_in,
    is_measured,
    is_validation,
)
from surestep.doctor.source.modes import find_switch, find_switches
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
from surestep.doctor.watcher import Script, TorchCall

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "error"
FIX = "Call model.eval() before the evaluation, and model.train() before training continues."
_FEWEST = 2  # outputs that were compared with targets
_MOST = 20  # outputs; later ones are not checked
_MODULES = ("torch.nn.", "torchvision.models.", "timm.create_model")
_ON_PURPOSE = re.compile(r"monte.?carlo|mc_?dropout|enable_dropout", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find measured forward passes in train mode, without gradients or of a validation loop."""
    if program.contains(_ON_PURPOSE):
        return
    for trace in program.traces:
        for event, output in find_forwards(trace):
            model = strip(output.receiver)
            if model is None or not _is_evaluation(trace, event, output):
                continue
            depends = depends_on_mode(model)
            if depends is False or (depends is None and not is_held_out(trace, output)):
                continue
            switch = find_switch(trace, event, model, is_training=True)
            if switch is not None or (depends and _stays_in_train_mode(trace, event, model)):
                yield at_event(
                    event,
                    f"`{describe(output.receiver)}` is in train mode here: dropout and BatchNorm "
                    "change what is measured.",
                    train_line=switch.event.line if switch else None,
                    assumed="" if depends else "The model has layers such as dropout or BatchNorm.",
                )


def _is_evaluation(trace: Trace, event: Event, output: Call) -> bool:
    if not is_without_grad(event) and not is_validation(trace, event, output):
        return False
    if has_training(trace, event):
        return is_held_out(trace, output) and is_measured(trace, event, output)
    # Passes of a range give samples of the output, with dropout on purpose.
    is_sampled = event.loop is not None and is_made_by(event.loop.iterated, "range")
    return not is_sampled and is_measured(trace, event, output)


def _stays_in_train_mode(trace: Trace, event: Event, model: Value) -> bool:
    is_new = all(isinstance(v, Instance) or is_made_by(v, *_MODULES) for v in options_of(model))
    at = trace.index(event)
    is_switched = any(trace.index(s.event) < at for s in find_switches(trace, model))
    return is_new and is_made_in(trace, model) and not is_switched


class EvaluatesInTrainModeWatcher(EvaluationWatcher):
    """Find outputs without gradients in train mode that are measured, or made for a DataLoader."""

    FUNCTIONS = (*MEAN_LOSSES, "dropout", "argmax", "max", "eq", "numpy", "tolist")

    def __init__(self) -> None:
        super().__init__()
        self._forget()
        self._is_loss_inside = False  # the model computes the loss itself
        self._is_dropped = False  # some of its features are
        self._tally = Tally()  # of outputs
        self._layer = self._name = ""

    def _forget(self) -> None:
        self._has_norm = False  # in the last forward pass
        self._outputs: list[weakref.ref[Tensor]] = []
        self._predicted: weakref.ref[Tensor] | None = None

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if len(run.modules) != 1 or run.in_backward:
            return
        import torch

        self._forget()
        is_loss_inside, is_dropped = self._is_loss_inside, self._is_dropped
        self._is_loss_inside = self._is_dropped = False
        if torch.is_grad_enabled() or not module.training or self._tally.mistakes >= _MOST:
            return
        layers = [layer for layer in list_mode_layers(module) if layer.training]
        if not layers and not is_dropped:
            return
        self._name = type(module).__name__
        self._layer = type(layers[0]).__name__ if layers else "dropout"
        self._has_norm = any(map(is_norm, layers))
        self._outputs = [weakref.ref(tensor) for tensor in list_tensors(output)]
        if is_loss_inside:
            self._count(run)
        elif not self._has_norm:
            self.count_call(run, self._name)  # not to update the statistics of a BatchNorm

    def on_call(self, run: Script, call: TorchCall) -> None:
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
                self.count_call(run, self._name)
                self._has_norm = False  # each output once
            if call.name in ("argmax", "max"):
                result = call.result
                self._predicted = weakref.ref(result[1] if isinstance(result, tuple) else result)

    def _is_output(self, value: Any) -> bool:
        return any(_is_of(value, output) for output in self._outputs)

    def _count(self, run: Script) -> None:
        self._tally.add_here(run)
        self._forget()  # each output once

    def observe(self, run: Script) -> Iterator[Problem]:
        evaluations = self.list_evaluations(run)
        outputs = self._tally.mistakes
        if outputs >= _FEWEST:
            yield self._tally.report(
                f"At least {outputs} outputs of {self._name} without gradients were compared"
                f" with targets in train mode, with an active {self._layer}.",
                {"outputs": outputs, "layer": self._layer},
            )
        elif len(evaluations) >= _FEWEST:
            yield evaluations[0].report(
                f"{evaluations[0].model} was in train mode, with an active {self._layer}, in "
                f"{len(evaluations)} passes over a DataLoader in which nothing was trained.",
                {"passes": len(evaluations), "layer": self._layer},
            )


def _is_of(value: Any, reference: weakref.ref[Tensor] | None) -> bool:
    """Return whether a value is a tensor, or a view of it."""
    tensor = None if reference is None else reference()
    return tensor is not None and (value is tensor or getattr(value, "_base", None) is tensor)
