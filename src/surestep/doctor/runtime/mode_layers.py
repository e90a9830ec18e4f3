"""Layers that compute something else in eval mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def is_mode_layer(layer: nn.Module) -> bool:
    """Return whether a layer is a dropout, or a normalization with running statistics."""
    from surestep.doctor import private

    return layer.p > 0 if isinstance(layer, private.Dropout) else is_norm(layer)


def is_norm(layer: nn.Module) -> bool:
    """Return whether a layer is a normalization with running statistics."""
    from surestep.doctor import private

    norms = private.BatchNorm, private.InstanceNorm
    return isinstance(layer, norms) and layer.running_mean is not None


def list_mode_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model that depend on the mode."""
    return [layer for layer in model.modules() if is_mode_layer(layer)]
