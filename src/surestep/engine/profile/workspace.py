"""What operations allocate and free inside, measured: a dispatch mode does not see it.

On a CPU, oneDNN has copies of images and weights in another layout, and chooses it by the shapes. A
Fourier transform of another dimension than the last has a copy in another order.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from surestep.engine import private
from surestep.engine.batch import map_tensors

_AT_MOST = 32 * 2**20  # bytes of images that are convolved to measure; more of them in proportion
# Which arguments of an operation have a row for each sample, by its name.
WITH_WORKSPACE = {
    "aten.convolution.default": (0,),
    "aten.convolution_backward.default": (0, 1),
    "aten._fft_r2c.default": (0,),
    "aten._fft_c2r.default": (0,),
    "aten._fft_c2c.default": (0,),
}


class TensorSpec(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Call(NamedTuple):
    """A call of an operation: of its arguments, tensors are specs and lists are tuples."""

    func: Any
    args: tuple[Any, ...]


def describe_call(func: Any, args: tuple[Any, ...]) -> Call:
    """Return a call without the values of its tensors."""

    def describe(tensor: torch.Tensor) -> Any:
        return TensorSpec(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    described = (map_tensors(value, describe) for value in args)
    return Call(func, tuple(tuple(x) if isinstance(x, list) else x for x in described))


@cache
def measure_workspace(call: Call) -> int:
    """Return the most bytes that an operation has inside beside its outputs, on the CPU.

    Large images are measured with fewer samples; oneDNN's copies grow with them in proportion.
    """
    if private.enable_profiler is None:
        return 0
    rows = WITH_WORKSPACE[str(call.func)]
    samples = call.args[rows[0]].shape[0]
    fewer = samples * _AT_MOST // max(1, sum(call.args[row].nbytes for row in rows))
    fewer = min(samples, max(1, fewer))
    args = [
        spec._replace(shape=(fewer, *spec.shape[1:])) if number in rows else spec
        for number, spec in enumerate(call.args)
    ]
    real = [
        torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).zero_()
        if isinstance(spec, TensorSpec)
        else spec
        for spec in args
    ]
    with torch.no_grad():
        most = total = 0
        for size in follow_allocations(lambda: call.func(*real)):
            total += size
            most = max(most, total)
    inside: int = (most - total) * samples // fewer
    return inside


def follow_allocations(run: Callable[[], object]) -> list[int]:
    """Return what is allocated on the CPU, and freed below 0, while the result of `run` exists."""
    config = private.LegacyProfiler(profile_memory=True).config()
    private.enable_profiler(config)
    try:
        result = run()
    finally:
        records = private.disable_profiler()
    del result  # which is still counted
    return [
        record.cpu_memory_usage()
        for thread in records
        for record in thread
        if record.kind() == "memory_alloc"
    ]
