"""Find the layers that compute something else in eval mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def depends_on_mode(layer: nn.Module) -> bool:
    """Return whether a layer is a dropout, or a normalization with running statistics."""
    from torch.nn.modules.dropout import _DropoutNd

    return layer.p > 0 if isinstance(layer, _DropoutNd) else is_norm(layer)


def is_norm(layer: nn.Module) -> bool:
    """Return whether a layer is a normalization with running statistics."""
    from torch.nn.modules.batchnorm import _NormBase

    return isinstance(layer, _NormBase) and layer.running_mean is not None


def list_switched(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model that depend on the mode."""
    return [layer for layer in model.modules() if depends_on_mode(layer)]
