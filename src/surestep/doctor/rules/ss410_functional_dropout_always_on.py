"""A module calls `F.dropout` without `training=self.training`.

The function does not know the mode of the module: its parameter `training` is true by default. So
dropout stays on after `model.eval()`, and each evaluation gives a different, worse result. Nothing
fails. `eval()` does not reach a `torch.nn.Dropout` that `forward` makes in each pass, either.

Ignore it if dropout is wanted in eval mode; `training=True` says so, and is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html

Wrong:

    import torch
    import torch.nn as nn
    import torch.nn.functional as F


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(4, 8)
            self.fc2 = nn.Linear(8, 2)

        def forward(self, x):
            x = F.dropout(F.relu(self.fc1(x)))
            return self.fc2(x)


    print(Net().eval()(torch.randn(3, 4)))

Right:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.drop(self.body(x)))


    net = Net().eval()
    net.drop.train()
    with torch.no_grad():
        print(torch.stack([net(torch.randn(3, 4)) for _ in range(5)]).std(0))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.edits import append_argument
from surestep.doctor.finding import Edit
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.modules import has_self, is_in_forward, reads_mode
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Constant, walk
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import nn

SEVERITY = "error"
FIXABLE = True
FIX = "Pass training=self.training, or make a torch.nn.Dropout in __init__."

_NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
_LAYERS = frozenset(
    f"torch.nn.{name}" for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")
)
_PATHS = frozenset(f"torch.nn.functional.{name}" for name in (*_NAMES, "feature_alpha_dropout"))


def check(program: Program) -> Iterator[Problem]:
    """Find dropout in the forward of a module that does not depend on its mode."""
    for trace in program.traces:
        for event, call in trace.calls:
            if not is_in_forward(event):
                continue
            if call.path in _PATHS and call.argument(2, "training") is None:
                if not _may_be_off(event, call, 1):
                    message = f"`{describe(call)}` also drops in eval mode."
                    yield at_event(event, message, edits=_pass_mode(event))
            elif (
                call.path == "()"
                and isinstance(layer := call.receiver, Call)
                and layer.path in _LAYERS
                and _is_made_in(event, layer)
                and not _may_be_off(event, layer, 0)
            ):
                message = f"`{describe(layer)}` is new in each pass: eval() does not reach it."
                yield at_event(event, message)


def _may_be_off(event: Event, call: Call, position: int) -> bool:
    """Return whether the rate, at a position of a call, or a condition may turn dropout off."""
    p = call.argument(position, "p")
    is_zero = p is not None and any(
        isinstance(part, Constant) and not part.value for part in walk(p)
    )
    depends = reads_mode(p) or any(reads_mode(branch.test) for branch in event.branches)
    return is_zero or depends or call.has_unknown_arguments


def _is_made_in(event: Event, layer: Call) -> bool:
    """Return whether a layer is made by the function in which it is called."""
    return any(node is layer.node for node in ast.walk(event.stack[-1].definition))


def _pass_mode(event: Event) -> tuple[Edit, ...]:
    if not has_self(event) or not isinstance(event.node, ast.Call):
        return ()
    edit = append_argument(event.file, event.node, "training=self.training")
    return () if edit is None else (edit,)


class FunctionalDropoutAlwaysOnWatcher(Watcher):
    """Find calls in eval mode that leave out the mode, or are of a layer made for the call."""

    FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")

    def __init__(self) -> None:
        self._tally = Tally()  # of calls
        self._name = ""

    def on_call(self, run: Script, call: TorchCall) -> None:
        if not run.modules or not call["p"] > 0:
            return
        module = run.modules[-1]
        if "training" in call.given:
            parent = run.modules[-2] if len(run.modules) > 1 else None
            is_wrong = call["training"] and parent is not None and _is_new(module, parent)
            module = parent if is_wrong and parent is not None else module
        else:
            is_wrong = not module.training
        if not is_wrong:
            return
        self._tally.add_here(run)
        if not self._name:
            self._name = f"{call.name} in {type(module).__name__}"

    def observe(self, run: Script) -> Iterator[Problem]:
        calls = self._tally.mistakes
        if calls:
            yield self._tally.report(
                f"{self._name} was active in eval mode, in {calls} calls that were checked.",
                {"calls": calls},
            )


def _is_new(layer: nn.Module, parent: nn.Module) -> bool:
    """Return whether a module in eval mode calls a layer of dropout that it does not hold."""
    is_layer = type(layer).__name__.startswith("Dropout")
    return is_layer and not parent.training and all(m is not layer for m in parent.modules())
