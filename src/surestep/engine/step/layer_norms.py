"""Norms of gradients, weights and updates by layer, computed on the device in some steps."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.distributed.shards import to_local
from surestep.engine.parallel.base import Strategy
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.log_point import LayerNorms
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepResult


class LayerNormMeter(Part):
    """Measures the trained parameters around a step; the newest measurement is kept on the device.

    Args:
        state: the state, with the model on its device.
        strategy: computes norms over all ranks.
        may_log_after: whether a log point may be due after the step on a batch; others are not
            measured.
    """

    def __init__(
        self,
        state: State,
        strategy: Strategy,
        may_log_after: Callable[[Batch], bool],
    ) -> None:
        self._strategy, self._parameters = strategy, trainable_parameters(state.model)
        self._may_log_after = may_log_after
        self._before: list[Tensor] | None = None
        self._measured: tuple[int, list[str], list[Tensor]] | None = None

    @torch.no_grad()
    def on_batch(self, state: State, batch: Batch) -> None:
        """Copy the weights before a step."""
        self._before = None
        if self._may_log_after(batch):
            self._before = [weight.clone() for weight in self._local_weights()]

    @torch.no_grad()
    def on_step(self, state: State, result: StepResult) -> None:
        """Compute the norms after the step, and replace earlier ones that were not read."""
        if self._before is None:
            return
        weights, updates, self._before = self._local_weights(), self._before, None
        for update, weight in zip(updates, weights, strict=True):
            update.neg_().add_(weight)
        norms = self._strategy.measure_norms([*weights, *updates])
        names, gradients = [], []
        if result.norms is not None:
            names, gradients = result.norms.names, list(result.norms.per_parameter.unbind())
        self._measured = result.step, names, [*gradients, *norms.unbind()]

    def to_read(self) -> Sequence[Tensor]:
        """Return the scalars of the last measurement; empty if nothing was measured."""
        return () if self._measured is None else self._measured[2]

    def on_read(self, values: Sequence[float | None]) -> LayerNorms | None:
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
