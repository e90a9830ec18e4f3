"""Layers that compute something else in eval mode, and the steps of models that have them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surestep.doctor.problem import NOWHERE, Location
from surestep.doctor.runtime.parameters import list_held
from surestep.doctor.runtime.tally import Occurrence

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_FEWEST_EVALUATIONS = 2  # that show their own switch, if the model never was in train mode


def depends_on_mode(layer: nn.Module) -> bool:
    """Return whether a layer is a dropout, or a normalization with running statistics."""
    from surestep.doctor import private

    return layer.p > 0 if isinstance(layer, private.Dropout) else is_norm(layer)


def is_norm(layer: nn.Module) -> bool:
    """Return whether a layer is a normalization with running statistics."""
    from surestep.doctor import private

    norms = private.BatchNorm, private.InstanceNorm
    return isinstance(layer, norms) and layer.running_mean is not None


def list_switched(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model that depend on the mode."""
    return [layer for layer in model.modules() if depends_on_mode(layer)]


def _trains_around(optimizer: Optimizer, model: nn.Module, layers: list[nn.Module]) -> bool:
    """Return whether an optimizer trains a model, and not only a head behind its frozen layers."""
    frozen = {
        id(module)
        for part in model.children()
        if (own := list(part.parameters())) and not any(p.requires_grad for p in own)
        for module in part.modules()
    }
    if all(id(layer) in frozen for layer in layers):
        return False
    used = list_held([optimizer])
    return any(id(p) in used and p.requires_grad for p in model.parameters())


@dataclass
class Switched(Occurrence):
    """A model with layers that depend on the mode.

    Attributes:
        model: that was called.
        name: of its class.
        layers: that depend on the mode; or a module that calls `dropout` by its own mode.
        is_used: whether the first of them was called with gradients since the last step.
        was_switched: whether it was in train mode in such a call.
        is_evaluated: whether it was called without gradients since it was put into eval mode.
        evaluations: how often it was evaluated like this.
        trained: steps in train mode.
        early: steps in eval mode after the first evaluation, before any in train mode.
        mistakes: steps in eval mode that an evaluation left behind.
    """

    model: weakref.ref[nn.Module]
    name: str
    layers: list[weakref.ref[nn.Module]]
    is_used: bool = False
    was_switched: bool = False
    is_evaluated: bool = False
    evaluations: int = 0
    trained: int = 0
    early: int = 0
    mistakes: int = 0
    since_step: int = 0
    location: Location = NOWHERE

    def is_trained_by(self, optimizer: Optimizer) -> bool:
        """Return whether a step is for the model, of which no such layer is in train mode."""
        model, layers = self.model(), [layer() for layer in self.layers]
        known = [layer for layer in layers if layer is not None and not layer.training]
        if model is None or len(known) < len(layers):
            return False
        return _trains_around(optimizer, model, known)

    def add_mistake(self, step: int, location: Location) -> None:
        """Count a step in the mode of an evaluation, if others show that it is not wanted."""
        if not (self.early or self.mistakes):
            self.since_step, self.location = step, location
        self.early += 1
        if self.trained or self.evaluations >= _FEWEST_EVALUATIONS:
            self.mistakes, self.early = self.mistakes + self.early, 0
