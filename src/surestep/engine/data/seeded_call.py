"""Calls of a function of the Task, with all generators seeded and the program's restored."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from surestep.engine.own_generators import OwnGenerators, seed_late_generators
from surestep.engine.rng import preserve_rng, preserve_torch_rng, seed_loading, torch_generators


class SeededCalls:
    """Seeds what a function of the Task may draw from, in this process.

    These are the global generators, that of the device, and those that the function owns.

    Args:
        name: of the function, in messages.
        function: it.
        device: that its tensors may be on.
    """

    def __init__(self, name: str, function: Callable[..., Any], device: torch.device) -> None:
        self._own = OwnGenerators((name, function))
        self._device = device
        self._of_device = torch_generators(device)[1:]

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Seed for one call, and restore the global generators."""
        on_host = not self._of_device
        with preserve_rng() if on_host else preserve_torch_rng(self._device):
            seed_loading(seed)
            for generator in self._of_device:
                generator.manual_seed(seed)
            self._own.reseed(seed)
            yield
        seed_late_generators(self._own, [])
