"""Norms of gradients, weights and updates by layer, computed on the device in some steps."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from surestep.engine.distributed.shards import to_local
from surestep.engine.parallel.single import SingleProcessStrategy
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.train_step import StepResult


class LayerNorms(NamedTuple):
    """Norms at one step, by layer, of all ranks.

    A layer is a module with its direct parameters, such as "blocks.0.attention". A parameter of the
    model itself is a layer, too. In a step with several optimizers, the gradient of a
    parameter is the last that was clipped.

    Attributes:
        step: the step.
        grad_norm: of the gradient that `grad_norm` of the step measures: of the global batch, and
            before clipping. Layers without a gradient are left out.
        weight_norm: of the weights after the step.
        update_norm: of the weights after the step minus those before it. It includes the learning
            rate, weight decay and clipping, and is 0 if the step was skipped.
    """

    step: int
    grad_norm: dict[str, float]
    weight_norm: dict[str, float]
    update_norm: dict[str, float]


class LayerNormMeter:
    """Measures the trained parameters around a step; the newest measurement is kept on the device.

    Args:
        state: the state, with the model on its device.
        strategy: computes norms over all ranks.
    """

    def __init__(self, state: State, strategy: SingleProcessStrategy) -> None:
        self._strategy, self._parameters = strategy, trainable_parameters(state.model)
        self._before: list[Tensor] = []
        self._measured: tuple[int, list[str], list[Tensor]] | None = None

    @torch.no_grad()
    def begin(self) -> None:
        """Copy the weights before a step."""
        self._before = [weight.clone() for weight in self._local_weights()]

    @torch.no_grad()
    def end(self, result: StepResult) -> None:
        """Compute the norms after the step, and replace earlier ones that were not read."""
        weights, updates, self._before = self._local_weights(), self._before, []
        for update, weight in zip(updates, weights, strict=True):
            update.neg_().add_(weight)
        norms = self._strategy.measure_norms([*weights, *updates])
        names, gradients = [], []
        if result.norms is not None:
            names, gradients = result.norms.names, list(result.norms.per_parameter.unbind())
        self._measured = result.step, names, [*gradients, *norms.unbind()]

    @property
    def values(self) -> Sequence[Tensor]:
        """The scalars to be read from the device; empty if nothing was measured."""
        return () if self._measured is None else self._measured[2]

    def take(self, values: Sequence[float | None]) -> LayerNorms | None:
        """Return the norms of the last measurement, from its values on the host, and forget it."""
        measured, self._measured = self._measured, None
        if measured is None:
            return None
        (step, names, _), own = measured, list(self._parameters)
        first, second = len(names), len(names) + len(own)
        return LayerNorms(
            step,
            _by_layer(names, values[:first]),
            _by_layer(own, values[first:second]),
            _by_layer(own, values[second:]),
        )

    def _local_weights(self) -> list[Tensor]:
        return [to_local(parameter).detach() for parameter in self._parameters.values()]


def layer_of(parameter: str) -> str:
    """Return the layer of a parameter: its name up to the last dot, or all of it."""
    return parameter.rpartition(".")[0] or parameter


def _by_layer(names: Sequence[str], norms: Sequence[float | None]) -> dict[str, float]:
    """Return the norm of each layer, from those of its parameters."""
    by_parameter = dict(zip(names, norms, strict=True))
    layers: dict[str, list[float]] = {}
    for name, norm in by_parameter.items():
        assert norm is not None
        layers.setdefault(layer_of(name), []).append(norm)
    return {layer: math.hypot(*found) for layer, found in layers.items()}
