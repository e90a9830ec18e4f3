"""Reports of a run to its parent, which may kill it at any moment."""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TextIO

import torch
from torch import Tensor, nn


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of every bit of the weights and of the optimizer's tensors."""
    hashed = sha256()
    for parameter in model.parameters():
        slots = optimizer.state.get(parameter, {})
        tensors = [slots[name] for name in sorted(slots) if isinstance(slots[name], Tensor)]
        for tensor in (parameter.detach(), *tensors):
            hashed.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:24]


class Reporter:
    """Writes the reports of a run.

    Args:
        shared: its first byte is 1 while a save is in progress.
        pipe: receives a byte at the start of each save.
        log: receives a line for the loaded state, for each step, and for each save.
    """

    def __init__(self, shared: mmap.mmap, pipe: int, log: TextIO) -> None:
        self._shared, self._pipe, self._log = shared, pipe, log
        self._saves, self._began = 0, 0.0

    def loaded(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Report the step that the run resumes from; 0 for a new run."""
        self._write(f"loaded {step} {digest(model, optimizer)}")

    def step(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Report the digest of a step."""
        self._write(f"step {step} {digest(model, optimizer)}")

    def begin_save(self) -> None:
        """Report that a save starts."""
        self._saves += 1
        self._shared[0] = 1
        self._began = time.perf_counter()
        os.write(self._pipe, f"save {self._saves}\n".encode())

    def end_save(self) -> None:
        """Report that the save is complete."""
        self._shared[0] = 0
        self._write(f"saved {self._saves} {time.perf_counter() - self._began:.6f}")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Report that a save is in progress within this block."""
        self.begin_save()
        yield
        self.end_save()

    def _write(self, line: str) -> None:
        self._log.write(line + "\n")
        self._log.flush()
