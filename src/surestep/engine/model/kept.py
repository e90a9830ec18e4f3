"""What a look at a model must leave as it was: modes and buffers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from surestep.engine.parallel.base import Outcome
from surestep.engine.step import Buffers


@contextmanager
def kept_modes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put each module back into its own mode, train or eval."""
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put back what a forward moves: its state of another kind than BatchNorm's is the run's."""
    buffers = Buffers(model)
    buffers.keep()
    try:
        yield
    finally:
        buffers.restore(Outcome(False))
