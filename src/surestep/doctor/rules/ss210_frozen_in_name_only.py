"""A frozen layer changes while the other layers are trained.

`requires_grad = False` stops gradients, and nothing else. BatchNorm in train mode still updates
its running statistics from the new data. An optimizer still updates a parameter that has a
gradient: one that is left from before, or zeros, with which momentum and weight decay move it.
Nothing fails: the layers are only not those that were frozen.

Ignore it if the statistics are to follow the new data. Layers that are frozen for some steps only,
such as the discriminator of a GAN, and copies without gradients are not reported.

Source: https://keras.io/guides/transfer_learning/

Wrong:

    import torch
    from torch import nn

    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    head = nn.Linear(8, 2)
    for parameter in body.parameters():
        parameter.requires_grad = False
    model = nn.Sequential(body, head)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    model.train()
    for _ in range(10):
        x, y = torch.randn(16, 4), torch.randint(2, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False)
    head = nn.Sequential(nn.Linear(8, 2), nn.Dropout(0.1))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    body.eval()
    for _ in range(10):
        x, y = torch.randn(16, 4), torch.randint(2, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.base.text import format_count
from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.tally import Occurrence, Tally
from surestep.doctor.runtime.tensors import read_part
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

SEVERITY = "warning"
FIX = "Put frozen BatchNorm layers into eval mode; set the gradients of frozen parameters to None."
_FEWEST = 5  # steps, or forward passes
_FEWEST_AGAIN = 15  # passes of layers that were trained before; GANs freeze a part for a few
_MOST = 64  # layers, or parameters
_VALUES = 64  # of a parameter, by which a change is noticed


@dataclass
class _Norm(Occurrence):
    """A normalization whose parameters are frozen, and whose statistics are not.

    Attributes:
        layer: a weak reference.
        since_step: the step of the first of these calls, from 1.
        location: of that call.
        calls: in train mode, with gradients, since its parameters were frozen.
        was_trained: whether they were trained before.
    """

    layer: weakref.ref[nn.Module]
    since_step: int
    location: Location
    calls: int = 0
    was_trained: bool = False


class FrozenInNameOnlyWatcher(Watcher):
    """Compare frozen parameters before and after steps, and count updates of statistics."""

    SAMPLED = ("on_step", "after_step")

    def __init__(self) -> None:
        self._norms: dict[int, _Norm] = {}
        self._trainable: dict[int, weakref.ref[Tensor]] = {}  # of optimizers
        self._before: list[tuple[Tensor, Tensor]] = []
        self._changes: list[Tensor] = []  # the number of parameters that a step changed
        self._changed = Tally()  # steps that changed some

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if getattr(module, "running_mean", None) is None or run.in_backward:
            return
        import torch

        norm, own = self._norms.get(id(module)), list(module.parameters())
        if norm is not None and norm.layer() is module:
            if any(parameter.requires_grad for parameter in own):
                norm.was_trained, norm.calls = True, 0
            elif module.training and torch.is_grad_enabled():
                norm.calls += 1
                if norm.calls == 1:
                    norm.since_step, norm.location = run.step + 1, run.locate()
        elif module.training and torch.is_grad_enabled() and own and len(self._norms) < _MOST:
            trained = any(parameter.requires_grad for parameter in own)
            seen = run.step + 1, run.locate()
            self._norms[id(module)] = _Norm(weakref.ref(module), *seen, int(not trained), trained)

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        self._before = []
        used = list(iter_parameters(optimizer))
        for parameter in used:
            if parameter.requires_grad:
                self._trainable.setdefault(id(parameter), weakref.ref(parameter))
            elif parameter.grad is not None and len(self._before) < _MOST:
                reference = self._trainable.get(id(parameter))
                if reference is not None and reference() is parameter:
                    values = read_part(parameter, _VALUES)
                    self._before.append((values, values.clone()))

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        if not self._before:
            return
        import torch

        changed = [(now != old).any() for now, old in self._before]
        self._changes.append(torch.stack([change.cpu() for change in changed]).sum())
        self._before = []
        if len(self._changes) == 1:
            self._changed.add(run.locate(), run.step)

    def observe(self, run: Script) -> Iterator[Problem]:
        norms = [
            norm
            for norm in self._norms.values()
            if norm.calls >= (_FEWEST_AGAIN if norm.was_trained else _FEWEST)
        ]
        if norms and run.step >= _FEWEST:
            yield norms[0].report(
                f"{format_count(len(norms), 'normalization layer')} with frozen parameters updated "
                f"the running statistics, in {norms[0].calls} forward passes that were checked.",
                {"layers": len(norms), "calls": norms[0].calls},
            )
        changes = [int(change) for change in self._changes if change]
        if len(changes) >= _FEWEST:
            yield self._changed.report(
                f"{len(changes)} steps that were checked changed up to {max(changes)} parameters "
                "that were frozen after earlier steps, and that still had a gradient.",
                {"steps": len(changes), "parameters": max(changes)},
            )
