"""Restore the buffers of a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from surestep.engine.buffers import every_buffer
from surestep.engine.step_outcome import StepOutcome

NORMS = nn.modules.batchnorm._NormBase  # those with running statistics


class BufferSnapshot:
    """The buffers of a model and of a loss, to restore them if a step is skipped.

    A forward updates BatchNorm's statistics before it is known whether the step counts. Buffers are
    found by owner and name, since some modules replace the tensor, or None.
    """

    def __init__(self, *modules: nn.Module | None) -> None:
        self.slots = [
            (module._buffers, name)
            for root in modules
            if root is not None
            for _, module, name in every_buffer(root)
            if not (module._buffers[name] is None and isinstance(module, NORMS))
            and not isinstance(module._buffers[name], nn.UninitializedBuffer)
        ]
        self._kept: list[_Kept | None] = []

    def save(self) -> None:
        """Copy the buffers."""
        with torch.no_grad():
            before = self._kept or [None] * len(self.slots)
            self._kept = [
                _copy(owner[name], kept)
                for (owner, name), kept in zip(self.slots, before, strict=True)
            ]

    @torch.no_grad()
    def restore(self, outcome: StepOutcome) -> None:
        """Restore the copy if the step was not taken; on the device if only the device knows.

        The device is read for a buffer that was None: once, in the step that filled it.
        """
        if outcome.nonfinite_flag is None and outcome.took_step:
            return
        good = None if outcome.nonfinite_flag is None else outcome.nonfinite_flag == 0
        for (owner, name), kept in zip(self.slots, self._kept, strict=True):
            now = owner[name]
            if kept is None or now is None or now.layout is not torch.strided:
                has_changed = now is not None if kept is None else kept.has_changed(now)
                if has_changed and (good is None or not bool(good)):
                    owner[name] = None if kept is None else kept.copy
            elif now.shape != kept.copy.shape:  # a table that grew: only its values are new
                owner[name] = kept.copy if good is None else now
            elif good is None:
                now.copy_(kept.copy)
            else:
                torch.where(good, now, kept.copy.to(now.dtype), out=now)


class _Kept(NamedTuple):
    """A copy of a buffer, and what shows whether a sparse one has changed."""

    copy: Tensor
    tensor: Tensor
    version: int

    def has_changed(self, now: Tensor | None) -> bool:
        """Return whether the buffer was replaced or written to."""
        return now is not self.tensor or version_of(self.tensor) != self.version


def _copy(now: Tensor | None, before: _Kept | None) -> _Kept | None:
    """Copy a buffer; a sparse one, which is large and rarely changes, only if it has changed."""
    if now is None:
        return None
    if now.layout is not torch.strided and before is not None and not before.has_changed(now):
        return before
    return _Kept(now.clone(), now, version_of(now))


def version_of(tensor: Tensor) -> int:
    """Return the number that each write to a tensor raises; 0 for one of inference mode."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def preserve_buffers(*modules: nn.Module | None) -> Iterator[None]:
    """Restore the buffers that a forward changes."""
    buffers = BufferSnapshot(*modules)
    buffers.save()
    tensors = [owner[name] for owner, name in buffers.slots]
    try:
        yield
    finally:
        for (owner, name), tensor in zip(buffers.slots, tensors, strict=True):
            owner[name] = tensor  # the same object: a forward may have replaced it
        buffers.restore(StepOutcome(False))
