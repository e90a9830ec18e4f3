"""CUDA graphs that share memory, with the generators that their kernels draw from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from surestep.engine.step.train_step import StepContext

Result = TypeVar("Result")


class CudaGraphs:
    """Records what functions launch on a GPU.

    The graphs share one memory pool, so they must be replayed in the order in which they were
    recorded; one may be repeated before the next.

    Args:
        device: the GPU.
        generators: that are seeded before each replay. Philox kernels in a graph read seed and
            offset of a generator from the device, where a replay writes them.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """

    def __init__(self, device: torch.device, generators: Sequence[Any]) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        default = torch.cuda.default_generators[self._stream.device_index]
        self._generators = [  # torch registers the default one
            own
            for own in generators
            if isinstance(own, torch.Generator) and own.device.type == "cuda" and own is not default
        ]

    @contextmanager
    def warm_up(self) -> Iterator[None]:
        """Run what follows on the stream that records, so that libraries are initialized there."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def record(self, function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Record what a function launches, without executing it.

        Threads that pin memory or write checkpoints may use the GPU meanwhile: "thread_local".

        Returns:
            What replays it, and the function's result, whose tensors each replay overwrites.

        Raises:
            RuntimeError: the function reads the device, or calls what CUDA cannot record.
        """
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        pool, stream, mode = self._pool, self._stream, "thread_local"
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
            result = function()
        return graph.replay, result


def record_on_gpu(context: StepContext) -> CudaGraphs:
    """Return what records the steps of a run on its GPU."""
    return CudaGraphs(context.randomness.device, context.randomness.generators)
