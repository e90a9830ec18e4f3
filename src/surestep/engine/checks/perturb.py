"""Outputs varied at random, each kept in the range that it has.

A new model returns nearly the same for every sample, and then a mean over tokens equals a mean
over samples. Varied outputs tell them apart. Probabilities stay probabilities, and what has one
sign keeps it, because a loss may be defined only there.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from surestep.engine.batch import map_tensors
from surestep.engine.checks.samples import Axis, Layout

_SUM_TOLERANCE = 1e-2


def perturb(outputs: Any, layout: Layout, generator: torch.Generator) -> Any:
    """Return outputs with every floating point number varied, some samples more than others.

    Args:
        outputs: nested tensors.
        layout: where the samples of each tensor are; a tensor without samples is not varied.
        generator: on the CPU.
    """
    axes: Iterator[Axis | None] = iter(layout)

    def vary(tensor: Tensor) -> Tensor:
        axis = next(axes)
        if axis is None or not tensor.is_floating_point() or not tensor.numel():
            return tensor
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        size = [1] * tensor.dim()
        size[axis.dim] = tensor.shape[axis.dim] // axis.block
        amplitude = torch.rand(size, generator=generator).repeat_interleave(axis.block, axis.dim)
        device = tensor.device
        varied = _vary(
            tensor.detach().to(torch.float64 if _is_wide(tensor) else torch.float32),
            noise.to(device),
            amplitude.to(device),
        )
        return varied.to(tensor.dtype)

    return map_tensors(outputs, vary)


def _is_wide(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float64


def _vary(values: Tensor, noise: Tensor, amplitude: Tensor) -> Tensor:
    """Return values varied within their range.

    Args:
        values: floating point numbers.
        noise: normal, of the same shape.
        amplitude: 0 to 1 for each sample, broadcast over the rest.
    """
    noise, amplitude = noise.to(values.dtype), amplitude.to(values.dtype)
    low, high = float(values.min()), float(values.max())
    if low == high == 0:
        return noise.abs().clamp(max=4) / 4 * amplitude
    if low >= 0 and high <= 1:
        dim = _dim_of_sum(values)
        other = noise.sigmoid() if dim is None else (2 * noise).softmax(dim)
        return values + amplitude * (other - values)
    if high <= 0:
        dim = _dim_of_sum(values.exp())
        if dim is not None:
            return (values + 3 * amplitude * noise).log_softmax(dim)
        return values * (amplitude * noise).exp()
    if low >= 0:
        return values * (amplitude * noise).exp()
    scale = max(float(values.square().mean().sqrt()), 1.0)
    return values + 2 * scale * amplitude * noise


def _dim_of_sum(values: Tensor) -> int | None:
    """Return the dimension along which values sum to 1, the last of several."""
    for dim in reversed(range(values.dim())):
        sums = values.sum(dim)
        if values.shape[dim] > 1 and bool(((sums - 1).abs() < _SUM_TOLERANCE).all()):
            return dim
    return None
